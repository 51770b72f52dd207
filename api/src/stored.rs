//! Reads objects that the API server has stored, which may be of a newer version of netclaim.
//!
//! New objects are decoded strictly. After a rollback, objects of the newer version are still there. It is
//! better to ignore an unknown field than to ignore the whole object.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Invalid;
use crate::decode::Removed;

/// The most unknown fields of an object: no version adds more.
const MAX_UNKNOWN: usize = 32;

/// What was read, and the paths of the fields that this version does not know.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored<T> {
    /// The value, without those fields.
    pub value: T,
    /// Their paths in the form `a.b[0].c`.
    pub unknown: Vec<String>,
}

/// Decodes a value without the fields that `T` does not know.
///
/// # Errors
/// Names the field that cannot be decoded for another reason.
pub fn read_stored<T: DeserializeOwned>(value: &Value) -> Result<Stored<T>, Invalid> {
    let (mut rest, mut unknown) = (value.clone(), Vec::new());
    loop {
        let error = match serde_path_to_error::deserialize::<_, T>(&rest) {
            Ok(value) => return Ok(Stored { value, unknown }),
            Err(error) => error,
        };
        let path = error.path().to_string();
        let is_unknown = error.inner().to_string().starts_with("unknown field ");
        if !is_unknown || unknown.len() == MAX_UNKNOWN || !Removed::default().remove(&mut rest, error.path())
        {
            let path = if path == "." { String::new() } else { path };
            return Err(Invalid::new(path, error.into_inner().to_string()));
        }
        unknown.push(path);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::uplink_policy::UplinkPolicySpec;

    #[test]
    fn unknown_fields_are_left_out_and_named_and_other_faults_are_errors() {
        let newer = json!({"links": {"names": ["eth1"]}, "publish": "Never", "drainFirst": true,
            "capacity": {"bandwidth": "1G", "packets": 5}});
        let stored: Stored<UplinkPolicySpec> = read_stored(&newer).expect("readable");
        assert_eq!(stored.unknown, ["capacity.packets", "drainFirst"]);
        let known =
            json!({"links": {"names": ["eth1"]}, "publish": "Never", "capacity": {"bandwidth": "1G"}});
        assert_eq!(stored.value, serde_json::from_value(known).expect("a policy"));
        let error = read_stored::<UplinkPolicySpec>(&json!({"links": {}, "publish": "Perhaps", "new": 1}));
        assert_eq!(error.expect_err("a fault").field, "publish");
        assert_eq!(read_stored::<UplinkPolicySpec>(&json!(7)).expect_err("a fault").field, "");
    }
}
