//! How well the node's devices are, as the kubelet is told of them.

use netclaim_api::taints::Trouble;

/// Bytes of a message that the kubelet takes (`ResourceHealthMessageMaxLength`); it cuts longer ones anywhere.
const MAX_MESSAGE: usize = 1024;

/// One device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHealth {
    /// Name of its pool.
    pub pool: String,
    /// Its name there.
    pub device: String,
    /// What is wrong with it; `None` when it is well.
    pub trouble: Option<Trouble>,
}

/// What somebody said, such as a plugin, as a message: one line, and no longer than the kubelet takes it.
pub fn in_one_line(words: &str) -> String {
    const MORE: &str = "…";
    let mut line: String = words.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.len() > MAX_MESSAGE {
        line.truncate(line.floor_char_boundary(MAX_MESSAGE - MORE.len()));
        line.push_str(MORE);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_and_cut_between_characters() {
        assert_eq!(in_one_line("not yet:\n\tthe daemon starts\n"), "not yet:  the daemon starts");
        assert_eq!(in_one_line(&"x".repeat(1024)), "x".repeat(1024));
        let cut = in_one_line(&"ä".repeat(1000));
        assert!(cut.ends_with("ä…") && (1023..=1024).contains(&cut.len()), "{}", cut.len());
    }
}
