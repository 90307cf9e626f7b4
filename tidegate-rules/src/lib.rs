//! The rule file of Tidegate.
