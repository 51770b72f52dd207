//! Owners, as the aliases of links name them (`ip link show`).
//!
//! ```text
//! netclaim-made NETWORK CONTAINER INTERFACE              a link that the plugin made
//! TEXT netclaim-port NETWORK CONTAINER INTERFACE         a port of a bridge; TEXT is the alias that it had
//! ```

use std::fmt;

use netclaim_plugin::Failure;

const MADE: &str = "netclaim-made ";
const PORT: &str = "netclaim-port ";
/// linux/if.h: IFALIASZ, less one.
const LONGEST: usize = 255;

/// The attachment that a link belongs to. Its names contain no spaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Name of the CNI network.
    pub(crate) network: String,
    /// `CNI_CONTAINERID`.
    pub(crate) container: String,
    /// `CNI_IFNAME`.
    pub(crate) interface: String,
}

impl Owner {
    fn parse(mark: &str) -> Option<Self> {
        let mut words = mark.split(' ').map(str::to_owned);
        let owner = Self { network: words.next()?, container: words.next()?, interface: words.next()? };
        words.next().is_none().then_some(owner)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.network, self.container, self.interface)
    }
}

/// A link's alias.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Alias {
    /// What another program wrote.
    pub(crate) text: String,
    /// Who had the plugin make the link.
    pub(crate) made: Option<Owner>,
    /// Who had the plugin make the link a port of a bridge.
    pub(crate) port: Option<Owner>,
}

impl Alias {
    pub(crate) fn parse(alias: &str) -> Self {
        let (rest, port) = cut(alias, PORT);
        match cut(rest, MADE) {
            // The plugin's own links had no alias before.
            ("", Some(made)) => Self { text: String::new(), made: Some(made), port },
            _ => Self { text: rest.to_owned(), made: None, port },
        }
    }

    /// The alias as the kernel keeps it; the error is for `field`.
    pub(crate) fn to_bytes(&self, field: &str) -> Result<Vec<u8>, Failure> {
        let marks = [(MADE, &self.made), (PORT, &self.port)];
        let mut alias = self.text.clone();
        for (tag, owner) in marks.into_iter().filter_map(|(tag, owner)| Some((tag, owner.as_ref()?))) {
            alias.push_str(if alias.is_empty() { "" } else { " " });
            alias.push_str(&format!("{tag}{owner}"));
        }
        if alias.len() > LONGEST {
            let problem =
                format!("its alias would be {alias:?}, longer than {LONGEST} bytes: use shorter names");
            return Err(Failure::config(field, problem));
        }
        Ok(alias.into_bytes())
    }
}

/// Splits the mark with this tag off the end of an alias.
fn cut<'a>(alias: &'a str, tag: &str) -> (&'a str, Option<Owner>) {
    let found = alias.rsplit_once(tag).and_then(|(before, mark)| {
        let before = if before.is_empty() { before } else { before.strip_suffix(' ')? };
        Some((before, Some(Owner::parse(mark)?)))
    });
    found.unwrap_or((alias, None))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn owner(names: &str) -> Option<Owner> {
        Owner::parse(names)
    }

    #[test]
    fn an_alias_of_another_program_is_not_a_mark() {
        for text in [
            "",
            " ",
            "uplink of rack 7",
            "netclaim-made a b",
            "netclaim-made a b c d",
            "x netclaim-made a b c",
            "xnetclaim-port a b c",
            "netclaim-port a b c ",
        ] {
            let alias = Alias::parse(text);
            assert_eq!(alias, Alias { text: text.to_owned(), ..Alias::default() }, "{text:?}");
        }
    }

    #[test]
    fn an_alias_that_would_be_cut_off_is_refused() {
        let made = owner(&format!("{} c i", "n".repeat(250)));
        let refused = Alias { made, ..Alias::default() }.to_bytes("name").unwrap_err().to_string();
        assert!(refused.starts_with("name: its alias would be") && refused.ends_with("use shorter names"));
    }

    proptest! {
        #[test]
        fn an_alias_reads_as_it_was_written(
            text in "([ -~]|netclaim-port a b c){0,10}", made in any::<bool>(), port in any::<bool>(),
        ) {
            let before = Alias::parse(&text);
            prop_assume!(before.port.is_none());
            let made = owner("net-a c1 eth1.5").filter(|_| made && text.is_empty()).or(before.made);
            let alias = Alias { text: before.text, made, port: owner("net.b c-2 net1").filter(|_| port) };
            let written = String::from_utf8(alias.to_bytes("name").unwrap()).unwrap();
            prop_assert_eq!(&Alias::parse(&written), &alias);
            let back = Alias { port: None, ..Alias::parse(&written) };
            prop_assert!(alias.made.is_some() || back.to_bytes("name").unwrap() == text.as_bytes());
        }
    }
}
