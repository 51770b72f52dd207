//! Requests about one interface, with errors that name it.

use nix::errno::Errno;

use crate::Failure;
use crate::rtnl::{Body, Rtnl, errno};

/// Sends requests about one interface in the calling thread's network namespace.
#[derive(Debug)]
pub struct Requests {
    rtnl: Rtnl,
    interface: String,
}

impl Requests {
    /// Opens a socket; `action` is for the error message.
    pub fn open(interface: &str, action: &'static str) -> Result<Self, Failure> {
        let rtnl = Rtnl::open().map_err(|source| Failure::kernel(interface, action, None, source))?;
        Ok(Self { rtnl, interface: interface.to_owned() })
    }

    /// The interface's name.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Sends a request and returns the answer; an answer with one of the errors `accepted` is empty. `action`
    /// and `module` are for the error message.
    pub fn ask(
        &mut self,
        action: &'static str,
        module: Option<&'static str>,
        (kind, flags): (u16, u16),
        body: &Body,
        accepted: &[Errno],
    ) -> Result<Vec<Vec<u8>>, Failure> {
        self.rtnl.ask(kind, flags, body).or_else(|source| match errno(&source) {
            Some(errno) if accepted.contains(&errno) => Ok(Vec::new()),
            _ => Err(Failure::kernel(&self.interface, action, module, source)),
        })
    }
}
