//! Errors of links and network namespaces.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

/// Why links or a network namespace could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An rtnetlink socket could not be opened, or failed.
    #[error("cannot use an rtnetlink socket")]
    Socket(#[source] io::Error),
    /// The kernel did not answer a dump.
    #[error("cannot list the {what} of the network namespace")]
    Dump {
        /// `links`, `addresses`, `hardware addresses` or `routes`.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// A change interrupted every dump.
    #[error("the {what} changed during each of {tries} attempts to list them")]
    Interrupted {
        /// As in [`Error::Dump`].
        what: &'static str,
        /// How many dumps were taken.
        tries: u32,
    },
    /// A route names a nexthop object instead of its link.
    #[error(
        "a route shows only the id of a nexthop object, which hides the node's own link: \
         set the sysctl net.ipv4.nexthop_compat_mode to 1"
    )]
    HiddenNexthop,
    /// The kernel did not say whether it supports a kind of link.
    #[error("cannot find out whether the kernel has links of kind {kind:?}")]
    Kind {
        /// The kind.
        kind: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refused to change a link.
    #[error("link {link}: cannot {change}")]
    Change {
        /// Its name at the time.
        link: String,
        /// The refused change.
        change: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// What links of a pod have by default cannot be set.
    #[error(
        "cannot set the sysctl {name} to {value} for new links of the pod: the agent needs a writable /proc/sys, \
         which its log or AppArmor's may say more about"
    )]
    Default {
        /// The sysctl, such as `ipv6/accept_ra`.
        name: &'static str,
        /// Its value.
        value: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel did not announce the addresses of a link.
    #[error("link {link}: its addresses cannot be announced")]
    Announce {
        /// Its name.
        link: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Whether another host has an address of a link cannot be found out.
    #[error("link {link}: cannot ask its network whether another host has the link's addresses")]
    Probe {
        /// Its name.
        link: String,
        /// The system's error.
        source: io::Error,
    },
    /// The frames of a link cannot be copied.
    #[error("link {link}: cannot copy its frames")]
    Capture {
        /// Its name.
        link: String,
        /// The system's error.
        source: io::Error,
    },
    /// No probes can be sent or heard.
    #[error("link {link}: cannot send probes to other nodes")]
    Ping {
        /// Its name.
        link: String,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel does not ask for a neighbour.
    #[error("link {link}: cannot ask for the hardware address of {ip}")]
    Neighbour {
        /// Its name.
        link: String,
        /// The neighbour.
        ip: IpAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// Changes of a link do not last: its driver ignores them, or another program changes it, too.
    #[error("link {link} does not keep the state that it had before the pod; still to do: {left}")]
    NotAsItWas {
        /// Its name.
        link: String,
        /// The changes that are still to do.
        left: String,
    },
    /// The tokio runtime stopped, or a bug panicked, while links were read.
    #[error("reading the links was aborted")]
    Aborted(#[source] tokio::task::JoinError),
    /// A namespace's path could not be opened.
    #[error("cannot open the network namespace at {path}", path = path.display())]
    NetnsOpen {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file at the path is not a network namespace.
    #[error(
        "{path} is not a network namespace; an empty file stays behind when one is unmounted",
        path = path.display()
    )]
    NotANetns {
        /// The path.
        path: PathBuf,
    },
    /// A namespace could not be entered.
    #[error("cannot enter network namespace {ino}")]
    NetnsEnter {
        /// Inode number of the namespace.
        ino: u64,
        /// The system's error.
        source: io::Error,
    },
    /// Work inside a namespace panicked.
    #[error("work inside network namespace {ino} panicked")]
    NetnsPanic {
        /// Inode number of the namespace.
        ino: u64,
    },
}

impl Error {
    /// Whether the namespace is known to be gone from its path, not merely unreadable.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::NotANetns { .. } => true,
            Self::NetnsOpen { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }
}
