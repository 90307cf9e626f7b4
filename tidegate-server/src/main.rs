//! The binary `tidegate`.

fn main() {}
