//! Real processes under a real keeper. Each test ends by asking `/proc` that nothing of it is left.

mod support;
mod tree;
