//! Files that cannot be opened for now: the nearest to one on a mount that does not answer.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A write lease (fcntl(2), F_SETLEASE): whoever opens or executes the file waits until it is dropped, at most for 45 s
/// (proc(5), lease-break-time). By perl, since the call has no safe form here.
#[derive(Debug)]
pub struct Leased(Child);

impl Leased {
    #[track_caller]
    pub fn hold(file: &Path) -> Self {
        // 1024 is F_SETLEASE and 1 F_WRLCK. Who is kept waiting has SIGIO sent to the holder.
        let code = r#"$SIG{IO} = "IGNORE"; open F, "+<", $ARGV[0] or die; fcntl F, 1024, 1 or die "lease: $!";
                      $| = 1; print "held\n"; <STDIN>"#;
        let mut holder = Command::new("perl")
            .args(["-e", code])
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("perl runs");
        let mut said = String::new();
        BufReader::new(holder.stdout.take().expect("piped")).read_line(&mut said).expect("readable");
        assert_eq!(said, "held\n");
        Self(holder)
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        // Not by the end of its stdin, whose other end is with what hangs on its way to exec as well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
