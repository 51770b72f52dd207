//! Which program each CNI plugin is: nodes and images may have several of one name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The plugins that the node's ClaimNetworks use, by type.
pub(super) type Plugins = BTreeMap<String, PathBuf>;

/// A plugin that is another program than at the last look, or at none.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change<'a> {
    pub(super) plugin: &'a str,
    pub(super) before: Option<&'a Path>,
    pub(super) now: Option<&'a Path>,
}

/// Compares two looks.
pub(super) fn changes<'a>(before: &'a Plugins, now: &'a Plugins) -> impl Iterator<Item = Change<'a>> {
    let came_or_moved = now.iter().map(|(plugin, path)| (plugin, before.get(plugin), Some(path)));
    let went = before.iter().filter(|(plugin, _)| !now.contains_key(*plugin));
    let all = came_or_moved.chain(went.map(|(plugin, path)| (plugin, Some(path), None)));
    all.filter(|(_, before, now)| before != now).map(|(plugin, before, now)| Change {
        plugin,
        before: before.map(PathBuf::as_path),
        now: now.map(PathBuf::as_path),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_that_comes_moves_or_goes_is_a_change() {
        let plugins = |found: &[(&str, &str)]| -> Plugins {
            found.iter().map(|(plugin, path)| ((*plugin).to_owned(), PathBuf::from(path))).collect()
        };
        let before = plugins(&[("same", "/a/same"), ("moved", "/a/moved"), ("gone", "/a/gone")]);
        let now = plugins(&[("same", "/a/same"), ("moved", "/b/moved"), ("new", "/b/new")]);
        let change = |plugin, before, now| Change {
            plugin,
            before: Option::map(before, Path::new),
            now: Option::map(now, Path::new),
        };
        assert_eq!(
            changes(&before, &now).collect::<Vec<_>>(),
            [
                change("moved", Some("/a/moved"), Some("/b/moved")),
                change("new", None, Some("/b/new")),
                change("gone", Some("/a/gone"), None),
            ]
        );
        assert_eq!(changes(&now, &now).count(), 0);
    }
}
