//! The text of an event, in the words of `netclaimctl explain`. Pure.
//!
//! A user who may read a pod may usually read its events. So claims and pods of other namespaces are not
//! named.

use std::collections::BTreeSet;

use netclaim_allocation::{Group, HeldBy, Holder};
use netclaim_api::{one_line, shorten};

use crate::objects::events::MAX_NOTE;

/// The most nodes that are named for a cause.
const NAMED_NODES: usize = 5;

/// The longest sentence about a cause, in bytes: a selector may be long.
const MAX_SENTENCE: usize = 400;

/// Bytes for `. And 4999 more causes`.
const MORE_CAUSES: usize = 32;

/// Returns the text where the nodes do not matter. `hint` is a sentence for the end, or empty.
pub(super) fn of_all(why: &str, hint: &str) -> String {
    with_hint(why, hint, MAX_NOTE)
}

/// Returns both sentences, in so many bytes.
fn with_hint(why: &str, hint: &str, max: usize) -> String {
    if hint.is_empty() {
        return shorten(one_line(why), max);
    }
    let hint = shorten(one_line(hint), max / 2);
    format!("{}. {hint}", shorten(one_line(why), max - hint.len() - 2))
}

/// Returns the text with `hint`, and a sentence for each group of nodes, as many as there is room for.
pub(super) fn of_groups(why: &str, hint: &str, groups: &[Group], namespace: &str) -> String {
    let requests: BTreeSet<&Option<String>> = groups.iter().map(|group| &group.request).collect();
    let mut note = with_hint(why, hint, MAX_NOTE / 2);
    for (index, group) in groups.iter().enumerate() {
        let request = group.request.as_deref().filter(|_| requests.len() > 1);
        let request = request.map(|request| format!("{request}: ")).unwrap_or_default();
        let (nodes, text) = (group.nodes_in_words(NAMED_NODES), &group.text);
        let sentence = one_line(&format!("{request}{nodes}: {text}{}", held_by(&group.holders, namespace)));
        let sentence = shorten(sentence, MAX_SENTENCE);
        if note.len() + sentence.len() + MORE_CAUSES > MAX_NOTE {
            note += &format!(". And {} more causes", groups.len() - index);
            break;
        }
        note += &format!(". {sentence}");
    }
    note
}

/// Names the holders of this namespace.
fn held_by(holders: &[Holder], namespace: &str) -> String {
    let is_own =
        |holder: &&Holder| holder.claim.strip_prefix(namespace).is_some_and(|claim| claim.starts_with('/'));
    let own: BTreeSet<&Holder> = holders.iter().filter(is_own).collect();
    match (own.is_empty(), own.len() < holders.len()) {
        (true, false) => String::new(),
        (true, true) => "; held by claims of other namespaces".to_owned(),
        (false, false) => HeldBy(&own).to_string(),
        (false, true) => format!("{}, and claims of other namespaces", HeldBy(&own)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(request: Option<&str>, text: &str, nodes: &[&str], holders: &[&str]) -> Group {
        let holder = |claim: &&str| Holder { claim: (*claim).to_owned(), pods: vec![(*claim).to_owned()] };
        Group {
            request: request.map(str::to_owned),
            text: text.to_owned(),
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            holders: holders.iter().map(holder).collect(),
            stops_the_scheduler: false,
        }
    }

    const NET: Option<&str> = Some("request net of claim net");

    #[test]
    fn each_group_of_nodes_has_a_sentence() {
        let groups = [
            group(NET, "ClaimNetwork storage: 0 of 254 addresses free", &["a", "b"], &["shop/x"]),
            group(NET, "the node does not offer ClaimNetwork storage", &["c"], &[]),
        ];
        assert_eq!(
            of_groups("no node can serve request net of claim net", "", &groups, "shop"),
            "no node can serve request net of claim net. \
             2 nodes (a, b): ClaimNetwork storage: 0 of 254 addresses free; held by claim shop/x (pod shop/x). \
             1 node (c): the node does not offer ClaimNetwork storage"
        );
    }

    #[test]
    fn several_requests_are_named() {
        let groups = [
            group(Some("request one of claim net"), "it is held", &["a"], &[]),
            group(Some("request two of claim net"), "it is held", &["a"], &[]),
        ];
        let note = of_groups("no node can serve all of its requests", "", &groups, "shop");
        assert!(note.ends_with(
            ". request one of claim net: 1 node (a): it is held. request two of claim net: 1 node (a): it is held"
        ));
    }

    #[test]
    fn holders_of_other_namespaces_are_not_named() {
        let held = |holders: &[&str]| {
            let holders = group(None, "", &[], holders).holders;
            held_by(&holders, "shop")
        };
        assert_eq!(held(&[]), "");
        assert_eq!(held(&["bank/vault"]), "; held by claims of other namespaces");
        assert_eq!(held(&["shopping/cart"]), "; held by claims of other namespaces");
        assert_eq!(
            held(&["bank/vault", "shop/x"]),
            "; held by claim shop/x (pod shop/x), and claims of other namespaces"
        );
    }

    #[test]
    fn a_text_fits_into_an_event_and_says_how_much_is_left_out() {
        let texts: Vec<String> = (0..40).map(|n| format!("cause {n} {}", "x".repeat(n))).collect();
        let groups: Vec<Group> = texts.iter().map(|text| group(NET, text, &["a"], &[])).collect();
        let note = of_groups("no node can serve request net of claim net", "", &groups, "shop");
        assert!(note.len() <= MAX_NOTE && note.len() > MAX_NOTE - 100, "{note}");
        assert!(note.ends_with(" more causes"), "{note}");
        let long = of_groups(
            &"w".repeat(2000),
            &"h".repeat(2000),
            &[group(NET, &"ä".repeat(2000), &["a"], &[])],
            "shop",
        );
        assert!(long.len() <= MAX_NOTE, "{}", long.len());
        for hint in [String::new(), "h\n".repeat(2000)] {
            assert!(of_all(&"w\n".repeat(2000), &hint).len() <= MAX_NOTE);
        }
    }

    #[test]
    fn a_hint_comes_before_the_causes() {
        let groups = [group(NET, "0 of 9 addresses free", &["a"], &[])];
        let note = of_groups("no node can serve it", "leave it out", &groups, "shop");
        assert_eq!(note, "no node can serve it. leave it out. 1 node (a): 0 of 9 addresses free");
    }

    #[test]
    fn texts_of_tenants_stay_on_one_line() {
        let note = of_groups("no", "", &[group(NET, "not known:\n\u{1b}[2J", &["a"], &[])], "shop");
        assert!(!note.contains(char::is_control), "{note:?}");
    }
}
