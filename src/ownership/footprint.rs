//! Giving back what only the start of a process needed.
//!
//! The kernel maps sixteen pages of the binary around each one that is touched, so after its start a keeper of 0.7 MiB
//! looks like one of 7, and a broker that has compiled its policies like one of 13. What was only read can be dropped:
//! it is read again, from the page cache, when it is touched.

use std::fs::File;
use std::io::{BufRead, BufReader};

use nix::libc;

/// Drops the pages of every mapping of a file that holds nothing written by this process (proc(5), `/proc/pid/smaps`).
/// Relocated data is a mapping of a file too, and its pages are anonymous: those mappings stay.
///
/// Where the kernel shows no such table, nothing is dropped.
pub fn drop_clean_pages() {
    let Ok(table) = File::open("/proc/self/smaps") else { return };
    let mut mapping = None;
    let mut clean = Vec::new();
    for line in BufReader::new(table).lines().map_while(Result::ok) {
        match line.split_once(": ").map(|(name, value)| (name, value.trim())) {
            Some(("Anonymous" | "Swap", "0 kB")) => {}
            Some(("Anonymous" | "Swap", _)) => mapping = None,
            // The last line of a mapping.
            Some(("VmFlags", _)) => clean.extend(mapping.take()),
            Some(_) => {}
            None => mapping = clean_mapping(&line),
        }
    }
    for (start, len) in clean {
        give_back(start, len);
    }
}

/// Start and length in bytes of a mapping of a file that cannot be written to:
/// `55d0c0e00000-55d0c1700000 r-xp 002f2000 fe:00 1234  /usr/bin/lazy-mcp`.
fn clean_mapping(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let is_private_and_read_only = matches!(fields.next()?, "r-xp" | "r--p");
    let is_of_a_file = fields.nth(2)? != "0";
    let start = usize::from_str_radix(start, 16).ok()?;
    let len = usize::from_str_radix(end, 16).ok()?.checked_sub(start)?;
    (is_private_and_read_only && is_of_a_file).then_some((start, len))
}

#[expect(unsafe_code, reason = "the kernel takes addresses")]
fn give_back(start: usize, len: usize) {
    // SAFETY: a private mapping of a file, without a page of this process's own: the next access reads the same bytes
    // from the file. It was so when the table was read, and no thread has written to any of them since, because they are
    // read-only.
    unsafe { libc::madvise(start as *mut libc::c_void, len, libc::MADV_DONTNEED) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: Option<(usize, usize)>) {
        assert_eq!(clean_mapping(line), expected, "{line}");
    }

    #[test]
    fn only_read_only_mappings_of_files_are_clean() {
        check("55d000001000-55d000003000 r-xp 002f2000 fe:00 12  /usr/bin/x", Some((0x55d0_0000_1000, 0x2000)));
        check("55d000001000-55d000003000 r--p 00000000 fe:00 12  /usr/bin/x y", Some((0x55d0_0000_1000, 0x2000)));
        check("55d000001000-55d000003000 rw-p 002f2000 fe:00 12  /usr/bin/x", None);
        check("55d000001000-55d000003000 r--s 002f2000 fe:00 12  /usr/bin/x", None);
        check("7ffe6a3e5000-7ffe6a3e6000 r-xp 00000000 00:00 0   [vdso]", None);
        check("7ffe6a3e5000-7ffe6a3e6000 ---p 00000000 fe:00 12  /usr/bin/x", None);
        check("", None);
    }
}
