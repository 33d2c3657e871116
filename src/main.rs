//! The `lazy-mcp` binary.

fn main() {}
