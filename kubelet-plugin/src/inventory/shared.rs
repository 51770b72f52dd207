//! Values that inventories share.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A value that is cloned only to be changed, and that is not compared with itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shared<T>(Arc<T>);

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

impl<T> From<T> for Shared<T> {
    fn from(value: T) -> Self {
        Self(Arc::new(value))
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for Shared<BTreeMap<K, V>> {
    fn from(entries: [(K, V); N]) -> Self {
        BTreeMap::from(entries).into()
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for Shared<BTreeMap<K, V>> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        BTreeMap::from_iter(entries).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails where it is compared.
    #[derive(Clone)]
    struct Opaque;

    impl PartialEq for Opaque {
        fn eq(&self, _: &Self) -> bool {
            unreachable!("compared")
        }
    }

    #[test]
    fn a_shared_value_is_not_compared_with_itself() {
        let value = Shared::from(Opaque);
        assert!(value == value.clone());
    }

    #[test]
    fn a_change_of_a_shared_value_leaves_the_others() {
        let before: Shared<BTreeMap<_, _>> = [(1, 'a')].into();
        let mut now = before.clone();
        now.insert(2, 'b');
        assert_eq!((before.len(), now.len()), (1, 2));
        assert!(before != now);
    }
}
