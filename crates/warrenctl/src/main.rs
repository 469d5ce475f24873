//! warrenctl
fn main() {}
