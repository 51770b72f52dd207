//! The node's sandboxes, and what the agent that works has heard of them. Pure.
//!
//! The runtime reports each event once. So a sandbox stays here until an agent has heard that it is removed,
//! and the next agent hears of all that the last one may not have handled.

use std::collections::BTreeMap;

use netclaim_nri::{Event, Sandbox};

/// What has happened to a sandbox last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Up,
    Stopped,
    Removed,
}

impl Stage {
    fn of(event: &Event) -> Self {
        match event {
            Event::Run(_) => Self::Up,
            Event::Stop(_) => Self::Stopped,
            Event::Remove(_) => Self::Removed,
        }
    }

    fn event(self, sandbox: Sandbox) -> Event {
        match self {
            Self::Up => Event::Run(sandbox),
            Self::Stopped => Event::Stop(sandbox),
            Self::Removed => Event::Remove(sandbox),
        }
    }
}

#[derive(Debug)]
struct Known {
    sandbox: Sandbox,
    stage: Stage,
    /// What the agent has handled.
    handled: Option<Stage>,
    /// The agent handles an event of the sandbox now.
    is_busy: bool,
}

impl Known {
    fn new(sandbox: Sandbox) -> Self {
        Self { sandbox, stage: Stage::Up, handled: None, is_busy: false }
    }

    /// Returns the event that the agent has to handle next.
    fn next(&mut self) -> Option<Event> {
        self.is_busy = self.handled != Some(self.stage);
        self.is_busy.then(|| self.stage.event(self.sandbox.clone()))
    }
}

/// The sandboxes by their ids.
#[derive(Debug, Default)]
pub(super) struct Sandboxes(BTreeMap<String, Known>);

impl Sandboxes {
    /// Replaces the sandboxes by those that the runtime lists. An agent still has to hear of the end of
    /// others.
    pub(super) fn replace(&mut self, listed: Vec<Sandbox>) {
        let listed: BTreeMap<String, Sandbox> =
            listed.into_iter().map(|sandbox| (sandbox.id.clone(), sandbox)).collect();
        for (id, known) in &mut self.0 {
            if known.stage == Stage::Stopped && !listed.contains_key(id) {
                known.stage = Stage::Removed;
            }
        }
        self.0.retain(|id, known| known.stage != Stage::Up || listed.contains_key(id));
        for (id, sandbox) in listed {
            let known = self.0.entry(id).or_insert_with(|| Known::new(sandbox.clone()));
            if known.stage == Stage::Up {
                known.sandbox = sandbox;
            }
        }
    }

    /// Notes an event. Returns whether an agent can handle it now; otherwise it gets the event after the one
    /// that it is handling.
    pub(super) fn note(&mut self, event: &Event) -> bool {
        let sandbox = event.sandbox();
        let known = self.0.entry(sandbox.id.clone()).or_insert_with(|| Known::new(sandbox.clone()));
        known.stage = Stage::of(event);
        !known.is_busy
    }

    /// Notes that the agent begins to handle the event that was noted last.
    pub(super) fn begin(&mut self, id: &str) {
        if let Some(known) = self.0.get_mut(id) {
            known.is_busy = true;
        }
    }

    /// Notes that the agent has handled an event. Returns the sandbox's next one, if there is one by now.
    pub(super) fn handled(&mut self, event: &Event) -> Option<Event> {
        let id = &event.sandbox().id;
        let known = self.0.get_mut(id)?;
        known.handled = Some(Stage::of(event));
        let next = known.next();
        if next.is_none() && known.stage == Stage::Removed {
            self.0.remove(id);
        }
        next
    }

    /// Returns the sandboxes that another agent has to know first: those that are up.
    pub(super) fn list_for_next_agent(&mut self) -> Vec<Sandbox> {
        let mut listed = Vec::new();
        for known in self.0.values_mut() {
            let is_up = known.stage == Stage::Up;
            (known.handled, known.is_busy) = (is_up.then_some(Stage::Up), false);
            listed.extend(is_up.then(|| known.sandbox.clone()));
        }
        listed
    }

    /// Returns what the agent has to handle now, one event for each sandbox.
    pub(super) fn begin_all(&mut self) -> Vec<Event> {
        self.0.values_mut().filter_map(Known::next).collect()
    }
}

#[cfg(test)]
mod tests {
    use netclaim_nri::SandboxNetwork;

    use super::*;

    fn sandbox(id: &str) -> Sandbox {
        Sandbox {
            id: id.into(),
            uid: format!("{id}-pod"),
            name: "p".into(),
            namespace: "default".into(),
            network: SandboxNetwork::Host,
        }
    }

    fn run(id: &str) -> Event {
        Event::Run(sandbox(id))
    }

    fn stop(id: &str) -> Event {
        Event::Stop(sandbox(id))
    }

    fn remove(id: &str) -> Event {
        Event::Remove(sandbox(id))
    }

    /// What the runtime reports while there is no agent.
    fn noted(events: impl IntoIterator<Item = Event>) -> Sandboxes {
        let mut sandboxes = Sandboxes::default();
        for event in events {
            assert!(sandboxes.note(&event));
        }
        sandboxes
    }

    #[test]
    fn the_next_agent_hears_of_what_happened_without_one() {
        let mut sandboxes =
            noted([run("up"), run("stopped"), stop("stopped"), run("gone"), stop("gone"), remove("gone")]);
        for _ in 0..2 {
            assert_eq!(sandboxes.list_for_next_agent(), [sandbox("up")]);
            assert_eq!(sandboxes.begin_all(), [remove("gone"), stop("stopped")]);
        }
        assert_eq!(sandboxes.handled(&remove("gone")), None);
        assert_eq!(sandboxes.handled(&stop("stopped")), None);
        sandboxes.list_for_next_agent();
        assert_eq!(sandboxes.begin_all(), [stop("stopped")], "until it is removed, every agent hears of it");
    }

    #[test]
    fn events_of_one_sandbox_are_handled_one_after_another() {
        let mut sandboxes = noted([run("a")]);
        sandboxes.begin("a");
        assert!(!sandboxes.note(&stop("a")), "its agent is busy with it");
        assert!(sandboxes.note(&run("b")), "another sandbox does not wait");
        assert_eq!(sandboxes.handled(&run("a")), Some(stop("a")));
        assert!(!sandboxes.note(&remove("a")));
        assert_eq!(sandboxes.handled(&stop("a")), Some(remove("a")));
        assert_eq!(sandboxes.handled(&remove("a")), None);
        assert!(!sandboxes.0.contains_key("a"), "nobody has to hear of it any more");
    }

    #[test]
    fn an_event_that_an_agent_died_of_is_the_next_ones() {
        for (event, listed, due) in [
            (run("a"), vec![sandbox("a")], vec![]),
            (stop("a"), vec![], vec![stop("a")]),
            (remove("a"), vec![], vec![remove("a")]),
        ] {
            let mut sandboxes = noted([event]);
            sandboxes.begin("a");
            assert_eq!((sandboxes.list_for_next_agent(), sandboxes.begin_all()), (listed, due));
        }
    }

    #[test]
    fn an_event_between_the_list_and_the_agents_answer_is_handled_after_it() {
        let mut sandboxes = noted([run("a")]);
        sandboxes.list_for_next_agent();
        sandboxes.note(&run("b"));
        sandboxes.note(&stop("a"));
        assert_eq!(sandboxes.begin_all(), [stop("a"), run("b")]);
    }

    #[test]
    fn a_runtime_that_connects_again_lists_what_there_is() {
        let mut sandboxes =
            noted([run("lost"), run("kept"), run("ending"), stop("ending"), run("ended"), stop("ended")]);
        sandboxes.replace(vec![sandbox("kept"), sandbox("ending"), sandbox("new")]);
        assert_eq!(sandboxes.list_for_next_agent(), [sandbox("kept"), sandbox("new")]);
        assert_eq!(sandboxes.begin_all(), [remove("ended"), stop("ending")]);
    }
}
