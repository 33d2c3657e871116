//! The broker's end of the control socket.

use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;

use crate::ownership::server::Stdio3;
use crate::ownership::wire::{self, Order, Report};

#[derive(Debug)]
pub(super) struct KeeperLink {
    socket: UnixStream,
    /// What has come and is no whole frame yet.
    buffer: Vec<u8>,
}

impl KeeperLink {
    pub fn new(socket: UnixStream) -> Self {
        Self { socket, buffer: Vec::new() }
    }

    /// Sends a `start` with the server's pipe ends, and closes ours of them.
    pub async fn send_start(&mut self, frame: &[u8], stdio: Stdio3) -> io::Result<()> {
        let fds = [stdio.stdin.as_raw_fd(), stdio.stdout.as_raw_fd(), stdio.stderr.as_raw_fd()];
        // The descriptors go with whatever part of the frame fits; the rest follows as bytes.
        let sent = self
            .socket
            .async_io(Interest::WRITABLE, || {
                let passed = [ControlMessage::ScmRights(&fds)];
                let socket = self.socket.as_raw_fd();
                Ok(sendmsg::<()>(socket, &[IoSlice::new(frame)], &passed, MsgFlags::MSG_NOSIGNAL, None)?)
            })
            .await?;
        drop(stdio);
        self.socket.write_all(&frame[sent..]).await
    }

    pub async fn send(&mut self, order: &Order) -> io::Result<()> {
        let frame = wire::encode(order).ok_or(io::ErrorKind::InvalidData)?;
        self.socket.write_all(&frame).await
    }

    /// The next report. Cancelling loses nothing.
    ///
    /// # Errors
    /// The keeper is gone.
    pub async fn report(&mut self) -> io::Result<Report> {
        loop {
            if let Some(report) = wire::decode(&mut self.buffer)? {
                return Ok(report);
            }
            if self.socket.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}
