//! The one way to signal: a descriptor that means this process and, after its death, nobody.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::libc;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::process_table::{Process, ProcessId};

/// A pinned process (pidfd_open(2), Linux 5.3).
#[derive(Debug)]
pub(super) struct PidFd(OwnedFd);

impl PidFd {
    /// Pins whoever has this pid now. The caller then reads the table again to learn who that is: what it reads is the
    /// pinned process, or the pinned one is dead and a signal reaches nobody.
    ///
    /// # Errors
    /// ESRCH: there is no such process; EMFILE and its like.
    #[expect(unsafe_code, reason = "neither std nor nix knows pidfd_open")]
    pub fn open(pid: u32) -> io::Result<Self> {
        // SAFETY: takes two integers and touches no memory of ours.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let fd = i32::try_from(fd).map_err(io::Error::other)?;
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel made this descriptor (close-on-exec) for us just now, and nobody else knows it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Pins exactly this process; `None` when it is gone.
    pub fn of(id: ProcessId) -> Option<Self> {
        let pinned = Self::open(id.pid).ok()?;
        let now = Process::read(id.pid)?;
        (now.start_time == id.start_time).then_some(pinned)
    }

    /// Readable when the process is dead, reaped or not.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// # Errors
    /// ESRCH: it is dead and reaped; EPERM: it runs as somebody else.
    #[expect(unsafe_code, reason = "neither std nor nix knows pidfd_send_signal")]
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let no_info = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open for as long as `self`, and a null siginfo means the one of kill(2).
        let answer =
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal as i32, no_info, 0) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// The pid as nix wants it.
pub(super) fn nix_pid(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed())
}
