//! Formats of texts that claims may set.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netclaim_cni::placeholder::PlaceholderValue;
use netclaim_kubernetes::names::is_dns_label;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::MacAddr;

/// Format of a string: an address (`ipv4`, `ipv6`), an address with prefix length (`cidr`), a unicast
/// Ethernet address (`mac`), or a DNS name (`hostname`). No text has two formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Format {
    /// An IPv4 address, `10.20.0.5`.
    Ipv4,
    /// An IPv6 address, `fd00::5`, but not an IPv4-mapped one (`::ffff:10.20.0.5`).
    Ipv6,
    /// An address with its prefix length, of either family: `10.20.0.0/24`, `fd00::/64`.
    Cidr,
    /// A unicast Ethernet address, `02:00:5e:10:00:01`.
    Mac,
    /// A DNS name in lower case without a dot at its end, `ns1.example.org`. Its last label must not be a
    /// number, or it could be read as an address.
    Hostname,
}

impl Format {
    /// A text of this format.
    pub(crate) const fn example(self) -> &'static str {
        match self {
            Self::Ipv4 => "10.20.0.5",
            Self::Ipv6 => "fd00::5",
            Self::Cidr => "10.20.0.0/24",
            Self::Mac => "02:00:5e:10:00:01",
            Self::Hostname => "ns1.lab",
        }
    }

    /// The facts about a text of this format before a claim sets it. A host name may be a word that the
    /// plugin knows.
    pub(super) const fn place(self) -> PlaceholderValue {
        PlaceholderValue::Like { example: self.example(), stands_for_all: !matches!(self, Self::Hostname) }
    }

    /// Checks that `text` has the format.
    ///
    /// # Errors
    /// Names the format, with an example.
    pub(super) fn check(self, text: &str) -> Result<(), String> {
        let (has, name) = match self {
            Self::Ipv4 => (text.parse::<Ipv4Addr>().is_ok(), "an IPv4 address"),
            Self::Ipv6 => (text.parse().is_ok_and(is_ipv6), "an IPv6 address"),
            Self::Cidr => (is_cidr(text), "an address with prefix length"),
            Self::Mac if text.len() == self.example().len() => {
                return MacAddr::try_from(text.to_owned()).map(drop).map_err(|error| error.to_string());
            }
            Self::Mac => (false, "a MAC address"),
            Self::Hostname => (is_hostname(text), "a DNS name"),
        };
        if has {
            return Ok(());
        }
        let shown = super::shown(&text.into());
        Err(format!("{shown} is not {name}: write for example {}", self.example()))
    }
}

/// Plugins written in Go read a mapped address as the IPv4 one.
fn is_ipv6(address: Ipv6Addr) -> bool {
    address.to_ipv4_mapped().is_none()
}

fn is_cidr(text: &str) -> bool {
    // Zeros before the length are refused by plugins.
    let length = |net: &IpNet| text.ends_with(&format!("/{}", net.prefix_len()));
    match text.parse::<IpNet>() {
        Ok(net @ IpNet::V6(v6)) => length(&net) && is_ipv6(v6.addr()),
        Ok(net @ IpNet::V4(_)) => length(&net),
        Err(_) => false,
    }
}

fn is_hostname(text: &str) -> bool {
    /// In bytes, as RFC 1035 has it.
    const MAX: usize = 253;
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    text.len() <= MAX && text.split('.').all(is_dns_label) && !text.rsplit('.').next().is_some_and(is_number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Format; 5] = [Format::Ipv4, Format::Ipv6, Format::Cidr, Format::Mac, Format::Hostname];

    #[test]
    fn an_example_has_its_form_and_no_other() {
        for (format, other) in ALL.into_iter().flat_map(|format| ALL.map(|other| (format, other))) {
            assert_eq!(other.check(format.example()).is_ok(), format == other, "{format:?} {other:?}");
        }
    }

    #[test]
    fn a_text_that_could_be_read_as_something_else_has_no_format() {
        let long_name = [vec!["a"; 126].join("."), "com".to_owned()].join(".");
        let bad = [
            "",
            " ",
            "10.0.0.1 ",
            "10.0.0.1\n",
            "010.0.0.1",
            "10.0.0",
            "10.1",
            "167772161",
            "10.0.0.1/",
            "10.0.0.0/33",
            "10.0.0.0/024",
            "10.0.0.0/08",
            "10.0.0.0/+8",
            "10.0.0.0/24/24",
            "/24",
            "fe80::1%eth0",
            "[fd00::1]",
            "::ffff:10.0.0.1",
            "::ffff:10.0.0.0/120",
            "fd00::/129",
            "02:00:00:00:00:+1",
            "01:00:5e:00:00:01",
            "02:00:00:00:00:01\n",
            "Example.org",
            "example.org.",
            "-a.org",
            "a..org",
            "a_b.org",
            "münchen.de",
            "1.2.3.4.5",
            "a.10",
            "a.org\0",
            "${node.name}",
            &long_name,
            &"a".repeat(64),
        ];
        for text in bad {
            for format in ALL {
                assert!(format.check(text).is_err(), "{format:?} {text:?}");
            }
        }
    }

    #[test]
    fn texts_that_plugins_understand_have_their_format() {
        for (format, text) in [
            (Format::Ipv4, "0.0.0.0"),
            (Format::Ipv6, "::"),
            (Format::Ipv6, "FD00::A"),
            (Format::Cidr, "0.0.0.0/0"),
            (Format::Cidr, "10.20.0.5/24"),
            (Format::Cidr, "fd00::1/128"),
            (Format::Mac, "02:AB:00:00:00:01"),
            (Format::Hostname, "a"),
            (Format::Hostname, "10.in-addr.arpa"),
            (Format::Hostname, "xn--mnchen-3ya.de"),
        ] {
            assert_eq!(format.check(text), Ok(()), "{text}");
        }
        assert_eq!(
            Format::Ipv4.check("10.0.0.300"),
            Err("\"10.0.0.300\" is not an IPv4 address: write for example 10.20.0.5".into())
        );
    }

    proptest! {
        #[test]
        fn addresses_as_they_are_written_have_their_form(v4: Ipv4Addr, v6: Ipv6Addr, length in 0_u8..=32) {
            prop_assert!(Format::Ipv4.check(&v4.to_string()).is_ok());
            prop_assert_eq!(Format::Ipv6.check(&v6.to_string()).is_ok(), v6.to_ipv4_mapped().is_none());
            let net = format!("{v4}/{length}");
            prop_assert!(Format::Cidr.check(&net).is_ok());
        }

        #[test]
        fn a_text_has_one_form_at_most(text in "[0-9a-f:./]{0,20}|[a-z0-9.-]{0,20}|\\PC{0,8}") {
            prop_assert!(ALL.into_iter().filter(|format| format.check(&text).is_ok()).count() <= 1);
        }
    }
}
