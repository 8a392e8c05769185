//! Parsers of text.

use std::path::Path;

use hawser_config::invitation::{Invitation, MOST_OTHERS};
use hawser_config::{self as config, ClientConfig, HubConfig};
use hawser_netem::scenario::Scenario;

/// An invitation as a person pastes it.
pub(crate) fn invitation(input: &[u8]) {
    let Ok(text) = core::str::from_utf8(input) else {
        return;
    };
    match text.parse::<Invitation>() {
        Ok(invitation) => {
            assert!(!invitation.hub.endpoints.is_empty());
            assert!(invitation.others.len() <= MOST_OTHERS);
            assert!(invitation.others.iter().all(|hub| !hub.endpoints.is_empty()));
            // The name becomes a file's.
            assert!(!invitation.name.contains(['/', '.']));
            assert_eq!(invitation.to_string().parse(), Ok(invitation));
        }
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
    }
}

/// A scenario; every trace that it names holds the same text again.
pub(crate) fn scenario(input: &[u8]) {
    let Ok(text) = core::str::from_utf8(input) else {
        return;
    };
    let read = &mut |_: &Path| Ok(text.to_owned());
    if let Err(error) = Scenario::parse(text, Path::new("scenario.toml"), &[], read) {
        assert!(!error.to_string().is_empty());
    }
    if let Some((setting, text)) = text.split_once('\n') {
        let settings = [setting.to_owned()];
        let _ = Scenario::parse(text, Path::new("scenario.toml"), &settings, &mut |_| {
            Ok("1\n2\n".to_owned())
        });
    }
    let _ = hawser_netem::Trace::parse(text);
}

/// A configuration file of either side.
pub(crate) fn config(input: &[u8]) {
    let Ok(text) = core::str::from_utf8(input) else {
        return;
    };
    let path = Path::new("hawser.toml");
    let problems = [
        config::parse::<ClientConfig>(path, text)
            .err()
            .map(|error| error.to_string()),
        config::parse::<HubConfig>(path, text)
            .err()
            .map(|error| error.to_string()),
    ];
    for problem in problems.into_iter().flatten() {
        assert!(
            problem.starts_with("hawser.toml:") && !problem.contains('\n'),
            "{problem}"
        );
    }
}
