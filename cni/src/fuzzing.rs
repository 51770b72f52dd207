//! Doors for fuzz targets to parsers that are not called from outside otherwise. Not part of the API: only
//! with the feature `fuzzing`, and free to change.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use crate::ipam::host_local::{self, Reservation};
use crate::runtime::reply::Reply;
use crate::{CniResult, ErrorKind, SpecVersion};

/// A finished plugin: its wait status, what it printed, and whether it printed more than was kept.
pub struct Finished(Reply);

impl Finished {
    /// `status` is that of wait(2).
    pub fn new(status: i32, stdout: Vec<u8>, overflow: bool) -> Self {
        Self(Reply { status: ExitStatus::from_raw(status), stdout, overflow })
    }

    /// The outcome of DEL, CHECK, GC or STATUS.
    pub fn success(&self) -> Result<(), ErrorKind> {
        self.0.success()
    }

    /// The result of ADD.
    pub fn result(&self, version: SpecVersion) -> Result<CniResult, ErrorKind> {
        self.0.result(version)
    }

    /// The versions in the answer to VERSION.
    pub fn versions(&self) -> Result<BTreeSet<SpecVersion>, ErrorKind> {
        self.0.versions()
    }
}

/// Reads the content of a file that host-local keeps for an address.
pub fn reservation(ip: IpAddr, text: &str) -> Reservation {
    host_local::reservation(ip, text)
}
