//! Makes changes of links, through rtnetlink.

use std::io;

use nix::errno::Errno;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec};

use super::changes::{Change, FREE_NAME};
use super::sysctls;
use crate::links::address::Address;
use crate::links::error::Error;
use crate::links::link::{Link, octets};

/// Opens a connection in the calling thread's network namespace, where it stays.
pub(super) fn connect() -> io::Result<(impl Future<Output = ()> + Send + 'static, Handle)> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    Ok((connection, handle))
}

/// Makes all `changes` that the kernel accepts. Returns the first error of the others.
pub(super) async fn apply<'a>(
    connected: io::Result<(impl Future<Output = ()> + Send + 'static, Handle)>,
    changes: Vec<(&'a Link, Change<'a>)>,
) -> Result<(), Error> {
    let (connection, handle) = connected.map_err(Error::Socket)?;
    let connection = tokio::spawn(connection);
    let (mut result, mut named, mut settled, mut renamed) = (Ok(()), true, true, None);
    for (link, change) in changes {
        // Until a link has its name, it is recognized by the plugin's alias. Labels of addresses follow a
        // rename.
        if matches!(change, Change::Alias(_) | Change::Address(_)) && !named {
            continue;
        }
        // A link that is up heeds its network.
        if matches!(change, Change::Up) && !settled {
            continue;
        }
        let made = match change {
            Change::Sysctl(name, value) => sysctls::set(renamed.unwrap_or(&link.name), name, value).await,
            _ => make(&handle, link.index, &change).await,
        };
        match made {
            // The kernel makes link-local addresses itself. A name that exists is another link's, so it is an
            // error.
            Err(error)
                if error.raw_os_error() == Some(Errno::EEXIST as i32)
                    && matches!(change, Change::Address(_)) => {}
            Err(source) => {
                named &= !matches!(change, Change::Name(_));
                settled &= !matches!(change, Change::Sysctl(..));
                let change = change.to_string();
                result = result.and(Err(Error::Change { link: link.name.clone(), change, source }));
            }
            Ok(()) => {
                if let Change::Name(name) = change {
                    renamed = Some(name);
                }
            }
        }
    }
    connection.abort();
    result
}

async fn make(handle: &Handle, index: u32, change: &Change<'_>) -> io::Result<()> {
    let link = LinkMessageBuilder::<LinkUnspec>::new().index(index);
    let link = match *change {
        Change::Down => link.down(),
        Change::Up => link.up(),
        Change::Promisc(on) => link.promiscuous(on),
        Change::AllMulti(on) => link.allmulticast(on),
        Change::Name(name) => link.name(name),
        Change::Mac(mac) => link.address(octets(mac)),
        Change::Mtu(mtu) => link.mtu(mtu),
        Change::Alias(alias) => link.alias(alias),
        Change::DropAltName(name) => {
            return handle.link().property_del(index).alt_ifname(&[name]).execute().await.map_err(io_error);
        }
        Change::AltName(name) => {
            return handle.link().property_add(index).alt_ifname(&[name]).execute().await.map_err(io_error);
        }
        Change::Address(address) => return add(handle, index, address).await,
        Change::Out(netns) => link.setns_by_fd(netns).name(FREE_NAME.to_owned()),
        Change::Sysctl(..) => return Ok(()),
    };
    handle.link().set(link.build()).execute().await.map_err(io_error)
}

async fn add(handle: &Handle, index: u32, address: &Address) -> io::Result<()> {
    let local = address.local.addr();
    let mut request = handle.address().add(index, local, address.local.prefix_len());
    let message = request.message_mut();
    message.header.family = if local.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    message.header.scope = address.scope.into();
    let flags = AddressFlags::from_bits_retain(address.configured_flags());
    message.attributes = vec![
        AddressAttribute::Local(local),
        AddressAttribute::Address(address.peer.unwrap_or(local)),
        AddressAttribute::Flags(flags),
    ];
    message.attributes.extend(address.broadcast.map(AddressAttribute::Broadcast));
    message.attributes.extend(address.label.clone().map(AddressAttribute::Label));
    message.attributes.extend(address.metric.map(AddressAttribute::RoutePriority));
    request.execute().await.map_err(io_error)
}

fn io_error(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other),
    }
}
