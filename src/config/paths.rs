//! Paths as operators write them, made fit to be used and shown.

use std::path::{Component, Path, PathBuf};

/// Absolute without touching what links point to.
pub(super) fn absolute(path: &Path) -> PathBuf {
    // Fails only for an empty path or a lost working directory; then the path itself is the best there is.
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    tidy(&std::path::absolute(path).unwrap_or_else(|_| path.to_owned()))
}

/// Takes out `dir/..` where that is safe, for messages that can be read: not after a symbolic link, because its `..`
/// is elsewhere.
pub(super) fn tidy(path: &Path) -> PathBuf {
    let mut tidied = PathBuf::new();
    for component in path.components() {
        let goes_back = component == Component::ParentDir
            && matches!(tidied.components().next_back(), Some(Component::Normal(_)))
            && !tidied.is_symlink();
        if goes_back {
            tidied.pop();
        } else {
            tidied.push(component);
        }
    }
    tidied
}
