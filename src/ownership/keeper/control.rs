//! The keeper's end of the control socket: blocking, on descriptor 0.

use std::io::{self, IoSliceMut, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

use crate::ownership::server::Stdio3;
use crate::ownership::wire::{self, Order, Report};

const READ_BYTES: usize = 16 << 10;

pub(super) struct Control {
    socket: UnixStream,
    /// What has come and is no whole frame yet.
    buffer: Vec<u8>,
    /// The server's pipe ends, until they are taken.
    passed: Vec<OwnedFd>,
}

impl Control {
    /// # Errors
    /// Descriptor 0 is closed.
    pub fn from_stdin() -> io::Result<Self> {
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Self { socket: UnixStream::from(socket), buffer: Vec::new(), passed: Vec::new() })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The next order that has come whole.
    pub fn next_order(&mut self) -> io::Result<Option<Order>> {
        let order = wire::decode(&mut self.buffer)?;
        if self.buffer.is_empty() {
            // An order may be large, and this process is small.
            self.buffer = Vec::new();
        }
        Ok(order)
    }

    /// Waits for bytes; `false` when the broker is gone.
    #[expect(unsafe_code, reason = "descriptors arrive as numbers")]
    pub fn receive(&mut self) -> io::Result<bool> {
        let mut bytes = [0; READ_BYTES];
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let mut space = nix::cmsg_space!([RawFd; 3]);
        let message = loop {
            match recvmsg::<()>(self.socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC) {
                Err(Errno::EINTR) => {}
                other => break other?,
            }
        };
        for part in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(fds) = part {
                // SAFETY: the kernel made these descriptors for this message, and nobody else knows them.
                self.passed.extend(fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        let len = message.bytes;
        self.buffer.extend_from_slice(&bytes[..len]);
        Ok(len > 0)
    }

    /// # Errors
    /// A `start` came without exactly three descriptors.
    pub fn take_stdio(&mut self) -> io::Result<Stdio3> {
        let passed: [OwnedFd; 3] =
            std::mem::take(&mut self.passed).try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        let [stdin, stdout, stderr] = passed;
        Ok(Stdio3 { stdin, stdout, stderr })
    }

    /// # Errors
    /// The broker is gone.
    pub fn report(&mut self, report: &Report) -> io::Result<()> {
        let frame = wire::encode(report).ok_or(io::ErrorKind::InvalidData)?;
        self.socket.write_all(&frame)
    }
}
