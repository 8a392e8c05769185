//! Fuzz targets of text parsers.

use std::path::Path;

use hawser_config::invitation::{Invitation, MAX_OTHERS};
use hawser_config::{self as config, ClientConfig, HubConfig};
use hawser_netem::scenario::Scenario;

/// Parses an invitation as pasted by a user.
pub(crate) fn invitation(input: &[u8]) {
    let Ok(text) = core::str::from_utf8(input) else {
        return;
    };
    match text.parse::<Invitation>() {
        Ok(invitation) => {
            assert!(!invitation.hub.endpoints.is_empty());
            assert!(invitation.others.len() <= MAX_OTHERS);
            assert!(invitation.others.iter().all(|hub| !hub.endpoints.is_empty()));
            // The name is used as a file name.
            assert!(!invitation.name.contains(['/', '.']));
            assert_eq!(invitation.to_string().parse(), Ok(invitation));
        }
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
    }
}

/// Parses a scenario; every file that it names has the same text.
pub(crate) fn scenario(input: &[u8]) {
    let Ok(text) = core::str::from_utf8(input) else {
        return;
    };
    let read = &mut |_: &Path| Ok(text.as_bytes().to_vec());
    if let Err(error) = Scenario::parse(text, Path::new("scenario.toml"), &[], read) {
        assert!(!error.to_string().is_empty());
    }
    if let Some((setting, text)) = text.split_once('\n') {
        let settings = [setting.to_owned()];
        let _ = Scenario::parse(text, Path::new("scenario.toml"), &settings, &mut |_| {
            Ok(b"1\n2\n".to_vec())
        });
    }
    let _ = hawser_netem::Trace::parse(text);
}

/// Parses a configuration file of client and hub.
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
