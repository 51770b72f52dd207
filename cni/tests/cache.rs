//! Attachments on disk.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use netclaim_cni::{
    AddOutcome, Attachment, Cache, CacheError, Cached, CniResult, Effect, EntryError, NetworkList,
    SpecVersion, Stopped,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const CONFLIST: &str =
    r#"{"cniVersion":"1.0.0", "name":"net","plugins":[{"type":"x","big":12345678901234567890123}]}"#;

/// As libcni 1.3.0 wrote it.
const LIBCNI: &str = r#"{"kind":"cniCacheV1","containerId":"c1","config":"eyJjbmlWZXJzaW9uIjoiMS4xLjAiLCJuYW1lIjoibmV0IiwicGx1Z2lucyI6W3sidHlwZSI6IngifV19","ifName":"net1","networkName":"net","netns":"/run/netns/a","cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAME","p"]],"capabilityArgs":{"ips":["10.1.0.9/24"],"mac":"02:00:00:00:00:01"},"result":{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.9/24"}]}}"#;

fn cached(network: &str, container: &str) -> Cached {
    let list = CONFLIST.replace("\"net\"", &format!("{network:?}"));
    let mut attachment =
        Attachment::new(container.parse().unwrap(), Some("/run/netns/a".into()), "net1".parse().unwrap());
    attachment.args.push(("K8S_POD_NAME".into(), "p".into()));
    attachment.capability_args.insert("ips", json!(["10.1.0.9/24"]));
    Cached {
        list: NetworkList::parse(list.as_bytes()).unwrap(),
        attachment,
        outcome: AddOutcome::Attached(
            CniResult::parse(r#"{"cniVersion":"1.0.0","x":18446744073709551616}"#, SpecVersion::V1_0_0)
                .unwrap(),
        ),
    }
}

fn load(cache: &Cache, of: &Cached) -> Result<Option<Cached>, CacheError> {
    cache.load(of.list.name(), &of.attachment.container_id, &of.attachment.if_name)
}

fn remove(cache: &Cache, of: &Cached) -> Result<(), CacheError> {
    cache.remove(of.list.name(), &of.attachment.container_id, &of.attachment.if_name)
}

fn empty() -> (TempDir, Cache) {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::new(dir.path().join("cni"));
    (dir, cache)
}

/// A cache with one file of this content in the place of [`cached`]`("net", "c1")`.
fn with_file(content: &str) -> (TempDir, Cache) {
    let (dir, cache) = empty();
    fs::create_dir_all(dir.path().join("cni/results")).unwrap();
    fs::write(dir.path().join("cni/results/net-c1-net1"), content).unwrap();
    (dir, cache)
}

#[test]
fn an_attachment_is_read_back_as_it_was_stored() {
    let (_dir, cache) = empty();
    let stored = cached("net", "c1");
    cache.store(&stored).unwrap();
    assert_eq!(load(&cache, &stored).unwrap(), Some(stored.clone()));
    assert_eq!(load(&cache, &cached("net", "c2")).unwrap(), None);

    let last_good = stored.outcome.result().cloned();
    let stopped = Stopped { completed: 1, effect: Effect::Container };
    let failed = [last_good.clone(), None].map(|last_good| AddOutcome::Failed(stopped, last_good));
    for outcome in failed.into_iter().chain([AddOutcome::Unfinished(last_good), AddOutcome::Unfinished(None)])
    {
        let failed = Cached { outcome, ..stored.clone() };
        cache.store(&failed).unwrap();
        assert_eq!(load(&cache, &failed).unwrap(), Some(failed.clone()));
    }
    let failed = Cached { outcome: AddOutcome::Unfinished(None), ..stored };
    assert_eq!(cache.attachments().unwrap().0, std::slice::from_ref(&failed));
    remove(&cache, &failed).unwrap();
    assert_eq!(load(&cache, &failed).unwrap(), None);
    remove(&cache, &failed).unwrap();
    assert_eq!(cache.attachments().unwrap().0, []);
}

#[test]
fn files_have_libcnis_form_and_are_for_their_owner_only() {
    let (dir, cache) = empty();
    cache.store(&cached("net", "c1")).unwrap();
    let results = dir.path().join("cni/results");
    let path = results.join("net-c1-net1");
    let file: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let expected: Value = serde_json::from_str(LIBCNI).unwrap();
    let keys = |file: &Value| file.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&file), keys(&expected));
    assert_eq!(file["cniArgs"], expected["cniArgs"]);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(&results).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::read_dir(&results).unwrap().count(), 1, "a temporary file is left");
}

#[test]
fn a_file_of_libcni_is_read() {
    let (_dir, cache) = with_file(LIBCNI);
    let found = load(&cache, &cached("net", "c1")).unwrap().unwrap();
    assert_eq!(found.attachment.args, [("K8S_POD_NAME".to_owned(), "p".to_owned())]);
    assert_eq!(found.attachment.netns.as_deref(), Some("/run/netns/a".as_ref()));
    assert_eq!(found.attachment.capability_args.mac.unwrap().to_string(), "02:00:00:00:00:01");
    assert_eq!((found.list.version(), found.list.plugins().count()), (SpecVersion::V1_1_0, 1));
    assert_eq!(found.outcome.result().unwrap().ips().len(), 1);
}

#[test]
fn members_that_libcni_leaves_out_may_be_missing_or_null() {
    let mut file: Value = serde_json::from_str(LIBCNI).unwrap();
    for key in ["netns", "cniArgs", "capabilityArgs", "result"] {
        file[key] = Value::Null;
        if key == "netns" {
            file.as_object_mut().unwrap().remove(key);
        }
    }
    let (_dir, cache) = with_file(&file.to_string());
    let found = load(&cache, &cached("net", "c1")).unwrap().unwrap();
    assert!(
        found.attachment.args.is_empty()
            && found.attachment.netns.is_none()
            && matches!(found.outcome, AddOutcome::Unfinished(None))
    );
}

#[test]
fn attachments_whose_file_names_are_equal_are_not_taken_for_each_other() {
    let (_dir, cache) = empty();
    let (one, other) = (cached("a-b", "c"), cached("a", "b-c"));
    cache.store(&one).unwrap();
    assert_eq!(load(&cache, &other).unwrap(), None);
    let error = cache.store(&other).unwrap_err();
    assert!(matches!(&error, CacheError::Taken { network, .. } if network.as_str() == "a-b"), "{error}");
    remove(&cache, &other).unwrap();
    assert_eq!(load(&cache, &one).unwrap(), Some(one));
}

#[test]
fn files_that_are_not_entries_are_named_and_do_not_hide_the_others() {
    let wrong_kind = LIBCNI.replace("cniCacheV1", "cniCacheV2");
    let other_name = LIBCNI.replace(r#""networkName":"net""#, r#""networkName":"other""#);
    let (dir, cache) = with_file("{\"kind\":");
    cache.store(&cached("net", "c2")).unwrap();
    let results = dir.path().join("cni/results");
    fs::write(results.join("wrong-kind"), wrong_kind).unwrap();
    fs::write(results.join("other-name"), other_name).unwrap();
    fs::write(results.join(".1-1.tmp"), "half").unwrap();
    let (known, unusable) = cache.attachments().unwrap();
    assert_eq!(known, [cached("net", "c2")]);
    let problem = |error: &CacheError| match error {
        CacheError::Entry { source: EntryError::Json(_), .. } => "json",
        CacheError::Entry { source: EntryError::Network { .. }, .. } => "network",
        CacheError::Entry { source: EntryError::Kind(_), .. } => "kind",
        other => panic!("{other}"),
    };
    assert_eq!(unusable.iter().map(problem).collect::<Vec<_>>(), ["json", "network", "kind"]);
    assert!(load(&cache, &cached("net", "c1")).is_err());
    // A useless file does no harm.
    cache.store(&cached("net", "c1")).unwrap();
    assert!(load(&cache, &cached("net", "c1")).unwrap().is_some());
}
