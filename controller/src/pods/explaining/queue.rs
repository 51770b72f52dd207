//! Who may need an event, in the order in which events are written. Pure.

use std::collections::{HashMap, VecDeque};

/// UIDs of pods. Namespaces take turns, so that many pods of one do not delay those of others.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// None of them is empty.
    by_namespace: HashMap<String, VecDeque<String>>,
    /// The namespaces, each once, the next one first.
    turns: VecDeque<String>,
}

impl Queue {
    /// Adds a pod after the others of its namespace.
    pub(super) fn push(&mut self, namespace: &str, uid: String) {
        if let Some(pods) = self.by_namespace.get_mut(namespace) {
            pods.push_back(uid);
        } else {
            self.by_namespace.insert(namespace.to_owned(), [uid].into());
            self.turns.push_back(namespace.to_owned());
        }
    }

    /// Takes the first pod of the namespace that is next.
    pub(super) fn pop(&mut self) -> Option<String> {
        let namespace = self.turns.pop_front()?;
        let pods = self.by_namespace.get_mut(&namespace)?;
        let uid = pods.pop_front();
        if pods.is_empty() {
            self.by_namespace.remove(&namespace);
        } else {
            self.turns.push_back(namespace);
        }
        uid
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_namespace.values().map(VecDeque::len).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_take_turns_and_pods_of_one_keep_their_order() {
        let mut queue = Queue::default();
        for (namespace, uid) in [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("c", "c2")]
        {
            queue.push(namespace, uid.to_owned());
        }
        assert_eq!(queue.len(), 6);
        let order: Vec<String> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, ["a1", "b1", "c1", "a2", "c2", "a3"]);
        assert!(queue.is_empty() && queue.by_namespace.is_empty());
    }
}
