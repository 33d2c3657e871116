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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_go_but_not_past_a_link() {
        assert_eq!(tidy(Path::new("config/../catalogs/./a.json")), Path::new("catalogs/a.json"));
        assert_eq!(tidy(Path::new("../a")), Path::new("../a"));
        assert_eq!(tidy(Path::new("/../a")), Path::new("/../a"));
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        assert_eq!(tidy(&link.join("../a")), link.join("../a"));
    }
}
