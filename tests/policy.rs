//! Policies from the file to the decision: what the shipped ones say, what broken ones get, what runaways get.

#![expect(clippy::unwrap_used, reason = "a helper that fails, fails its test")]

#[path = "policy/arguments.rs"]
mod arguments;
#[path = "policy/broken.rs"]
mod broken;
#[path = "policy/headers.rs"]
mod headers;
#[path = "policy/hooks.rs"]
mod hooks;
#[path = "policy/language.rs"]
mod language;
#[path = "policy/media.rs"]
mod media;
#[path = "policy/properties.rs"]
mod properties;
#[path = "policy/results.rs"]
mod results;
#[path = "policy/runaway.rs"]
mod runaway;
#[path = "policy/sandbox.rs"]
mod sandbox;
#[path = "policy/shipped.rs"]
mod shipped;

use std::fs;
use std::path::Path;

use lazy_mcp_broker::policy::{Policy, load};

/// A directory with a file `policy.lua` of this text.
fn directory_with(text: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("policy.lua"), text).unwrap();
    directory
}

/// What is wrong with a policy, without the directory it is in.
#[track_caller]
fn faults(text: &str) -> String {
    faults_in(&directory_with(text))
}

#[track_caller]
fn faults_in(directory: &tempfile::TempDir) -> String {
    let path = directory.path().join("policy.lua");
    let faults = load(&path).expect_err("the policy loads").to_string();
    faults.replace(&format!("{}/", directory.path().display()), "")
}

fn shipped(name: &str) -> Policy {
    load(Path::new(&format!("policies/{name}.lua"))).unwrap()
}
