//! What the binary `tidegate` does.
