//! Objects in the text of a file: YAML with several documents, or JSON.

use std::ops::Range;

use netclaim_cni::refuse_duplicate_keys;
use serde_json::Value;
use serde_json::value::RawValue;

/// The deepest nesting of a document. Deeper ones are not objects of Kubernetes, and would need a larger
/// stack.
const MAX_DEPTH: usize = 64;

/// Returns the documents of a text. Repeated keys are refused, because readers disagree on which one counts.
///
/// # Errors
/// Says what cannot be read, and in which line of the text.
pub(crate) fn read(text: &str) -> Result<Vec<Value>, String> {
    let is_json =
        text.trim_start().strip_prefix('{').is_some_and(|rest| rest.trim_start().starts_with(['"', '}']));
    if !is_json {
        return yaml(text);
    }
    match split(text) {
        Ok(documents) => documents.into_iter().map(|document| json(text, document)).collect(),
        // YAML may begin like this, too.
        Err(error) => yaml(text).map_err(|in_yaml| format!("{error}; as YAML: {in_yaml}")),
    }
}

/// Returns where the JSON documents of a text are.
fn split(text: &str) -> Result<Vec<Range<usize>>, serde_json::Error> {
    let mut documents = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    let (mut found, mut start) = (Vec::new(), 0);
    while let Some(document) = documents.next() {
        document?;
        let end = documents.byte_offset();
        found.push(start..end);
        start = end;
    }
    Ok(found)
}

fn json(text: &str, document: Range<usize>) -> Result<Value, String> {
    let parse = |text: &str| refuse_duplicate_keys(text).and_then(|()| serde_json::from_str(text));
    parse(&text[document.clone()]).map_err(|error| {
        // The parser counts lines from the beginning of what it gets.
        let blank = |byte| if byte == b'\n' { '\n' } else { ' ' };
        let before: String = text[..document.start].bytes().map(blank).collect();
        parse(&(before + &text[document])).err().unwrap_or(error).to_string()
    })
}

fn yaml(text: &str) -> Result<Vec<Value>, String> {
    let options = serde_saphyr::options! {
        // The file is the caller's own, and may have a whole cluster.
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_documents: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
        },
        with_snippet: false,
    };
    let documents: Vec<Value> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|error| error.to_string())?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_read_in_yaml_and_in_json() {
        for text in [
            "{\"a\": 1}\n{\"a\": 2}",
            "a: 1\n---\na: 2\n",
            "# nothing\n---\na: 1\n---\n---\na: 2",
            "{a: 1}\n---\n{a: 2}",
            "{\"a\": 1}\n---\n{\"a\": 2}",
        ] {
            let found: Vec<i64> =
                read(text).expect("reads").iter().filter_map(|value| value["a"].as_i64()).collect();
            assert_eq!(found, [1, 2], "{text}");
        }
        assert_eq!(read("").expect("nothing"), Vec::<Value>::new());
    }

    #[test]
    fn an_unreadable_document_is_named_with_its_line() {
        for (text, line) in [
            ("a: 1\nb: [", "line 2"),
            ("a: 1\nb:\n  c: 1\n  c: 2\n", "line 4"),
            ("a: 1\n---\nb: \"x\n", "line 4"),
            ("\n{\"a\": 1,\n\"a\": 2}", "line 3"),
            ("{\"a\": 1}\n{", "line 2"),
            ("{\"a\": 1}\n{\"a\": 1}\n{\"a\": 1,\n\"a\": 2}", "line 4"),
            ("{\"a\": 1} {\"a\": 1, \"a\": 2}", "line 1 column 21"),
            ("{a: 1,\na: 2}", "line 2"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(line) && !error.contains('\n'), "{text:?}: {error}");
        }
    }

    #[test]
    fn nesting_without_end_is_refused() {
        for open in ["[", "{a: "] {
            assert!(read(&format!("a: {}", open.repeat(100_000))).is_err());
        }
        assert!(read(&format!("{{\"a\":{}", "[".repeat(100_000))).is_err());
        let blocks: String = (0..1000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
        assert!(read(&blocks).is_err());
    }
}
