//! Requests about the container's routes.

use netclaim_plugin::rtnl::{Body, Rtnl, errno, u32_at};
use netclaim_plugin::{Failure, link};
use nix::errno::Errno;
use nix::libc::RTM_GETLINK;

/// The codes of an ADD that the container's routes forbid, and of a CHECK that finds something else than ADD
/// made.
const REFUSED: u32 = 102;
const DIFFERS: u32 = 101;

/// Sends requests about one interface in the calling thread's network namespace.
#[derive(Debug)]
pub(crate) struct Kernel {
    rtnl: Rtnl,
    interface: String,
}

impl Kernel {
    pub(crate) fn open(interface: &str, action: &'static str) -> Result<Self, Failure> {
        let rtnl = Rtnl::open().map_err(|source| Failure::kernel(interface, action, None, source))?;
        Ok(Self { rtnl, interface: interface.to_owned() })
    }

    /// Sends a request and returns the answer; an answer with one of the errors `accepted` is empty. `action`
    /// and `module` are for the error message.
    pub(crate) fn ask(
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

    /// Returns the index of the link of this name.
    pub(crate) fn index(&mut self, action: &'static str, name: &str) -> Result<Option<u32>, Failure> {
        let found = self.ask(action, None, (RTM_GETLINK, 0), &link::by_name(name), &[Errno::ENODEV])?;
        Ok(found.first().and_then(|message| u32_at(message, 4)))
    }

    pub(crate) fn refused(&self, problem: String) -> Failure {
        Failure::State { code: REFUSED, problem: format!("{}: {problem}", self.interface) }
    }

    pub(crate) fn differs(&self, found: String) -> Failure {
        Failure::State { code: DIFFERS, problem: format!("{}: {found}", self.interface) }
    }
}
