//! Addresses as whereabouts reads and counts them.

use std::net::IpAddr;

use ipnet::IpNet;
use netclaim_api::addresses::{Span, before, nth_after};

/// Reads an address as Kubernetes' `ParseIPSloppy` does: with leading zeros in IPv4, and IPv4 written as
/// IPv6.
pub(crate) fn ip(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(ip.to_canonical());
    }
    let octets = text.split('.').map(|octet| {
        let is_number = (1..=8).contains(&octet.len()) && octet.bytes().all(|byte| byte.is_ascii_digit());
        octet.parse::<u8>().ok().filter(|_| is_number)
    });
    let octets: Option<Vec<u8>> = octets.take(5).collect();
    Some(IpAddr::from(<[u8; 4]>::try_from(octets?).ok()?))
}

/// Reads a CIDR with whatever host bits it has. The address part stays as written.
pub(crate) fn cidr(text: &str) -> Option<IpNet> {
    let (address, prefix) = text.trim().split_once('/')?;
    let is_number = (1..=3).contains(&prefix.len()) && prefix.bytes().all(|byte| byte.is_ascii_digit());
    let net = IpNet::new(ip(address)?, prefix.parse().ok().filter(|_| is_number)?).ok()?;
    Some(net)
}

/// Returns the usable part of a subnet: without the first and the last address (`FirstUsableIP`,
/// `LastUsableIP`). `None` if the subnet has less than four addresses, with which whereabouts refuses to
/// work.
pub(crate) fn usable(net: IpNet) -> Option<Span> {
    let all = Span::of_net(net);
    let span = Span::new(nth_after(all.first(), 1)?, before(all.last())?)?;
    (all.size() >= 4).then_some(span)
}

/// Returns a range as it is in the names of whereabouts' objects (`normalizeRange`, `NormalizeIP`).
pub(crate) fn name_part(range: &str) -> String {
    let end = if range.ends_with(':') { "0" } else { "" };
    format!("{range}{end}").replace([':', '/'], "-")
}

/// Returns what is before the range in the name of an IPPool, `network_name` or a node; empty if it has no
/// prefix. `None` if the name is not made from the range. Old pools are named by a range with host bits.
pub(crate) fn prefix(name: &str, range: IpNet) -> Option<&str> {
    [range, range.trunc()].into_iter().find_map(|net| {
        let before = name.strip_suffix(&name_part(&net.to_string()))?;
        if before.is_empty() { Some(before) } else { before.strip_suffix('-') }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_added_in_64_bits_and_never_wraps() {
        let add =
            |ip: &str, offset: u64| nth_after(ip.parse().unwrap(), offset.into()).map(|ip| ip.to_string());
        assert_eq!(add("10.0.0.5", 3).as_deref(), Some("10.0.0.8"));
        assert_eq!(add("255.255.255.255", 1), None);
        assert_eq!(add("10.0.0.0", u64::MAX), None);
        assert_eq!(add("fd00::", 1 << 63).as_deref(), Some("fd00::8000:0:0:0"));
        assert_eq!(add("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 1), None);
    }

    #[test]
    fn addresses_are_read_as_leniently_as_whereabouts_reads_them() {
        let read = |text: &str| ip(text).map(|ip| ip.to_string());
        assert_eq!(read("010.000.0.07").as_deref(), Some("10.0.0.7"));
        assert_eq!(read("::ffff:10.0.0.1").as_deref(), Some("10.0.0.1"));
        for bad in ["", "10.0.0", "10.0.0.256", "10.0.0.0.1", "+1.0.0.0", "10.0.0.-1", "fd00::g"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert_eq!(cidr("10.0.0.5/24").map(|net| net.to_string()).as_deref(), Some("10.0.0.5/24"));
        for bad in ["10.0.0.0", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/+8", "/8", "fd00::/129"] {
            assert_eq!(cidr(bad), None, "{bad}");
        }
    }
}
