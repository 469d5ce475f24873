//! Panics of simulated code: tokio keeps those of tasks to itself, so a hook writes them down.

use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    /// What has panicked on this thread since it was last asked, while a simulation runs on it.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// From now on, panics of this thread are written down.
pub(crate) fn watch() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = format!("{info}");
            let noted = PANICS.with(|panics| {
                panics
                    .borrow_mut()
                    .as_mut()
                    .map(|list| list.push(text))
                    .is_some()
            });
            if !noted {
                usual(info);
            }
        }));
    });
    PANICS.with(|panics| *panics.borrow_mut() = Some(Vec::new()));
}

/// What has panicked since the last call.
pub(crate) fn take() -> Vec<String> {
    PANICS.with(|panics| {
        panics
            .borrow_mut()
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    })
}

/// The simulation on this thread is over.
pub(crate) fn unwatch() {
    PANICS.with(|panics| *panics.borrow_mut() = None);
}
