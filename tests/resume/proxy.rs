//! A network that breaks when it is told to.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// Passes connections on. Its threads end with the connections; the one that listens ends with the test.
pub struct Proxy {
    pub address: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub fn before(broker: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let open: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let known = open.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(broker) else { continue };
                let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                known.extend([&client, &server].map(|stream| stream.try_clone().expect("a descriptor is free")));
                pass(&client, &server);
                pass(&server, &client);
            }
        });
        Self { address, open }
    }

    /// Cuts everything that is open, both ways; the number of connections.
    pub fn cut(&self) -> usize {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let cut = open.drain(..).filter(|stream| stream.shutdown(Shutdown::Both).is_ok()).count();
        cut.div_ceil(2)
    }
}

fn pass(from: &TcpStream, to: &TcpStream) {
    let clones = (from.try_clone(), to.try_clone());
    let (Ok(mut from), Ok(mut to)) = clones else { return };
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            if to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        to.shutdown(Shutdown::Both).ok();
    });
}
