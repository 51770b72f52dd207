//! Errors in one line.

/// Returns an error with all its causes in one line: `what failed: why: and why that`.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |chain, cause| format!("{chain}: {cause}"))
}
