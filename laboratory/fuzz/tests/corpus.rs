//! Replays the committed corpus, unchanged and with small damages.

use std::collections::HashSet;
use std::mem::discriminant;
use std::path::{Path, PathBuf};

use hawser_config::Page;
use hawser_config::invitation::Invitation;
use hawser_fuzz::{PAGE, QUERY};
use hawser_host::dns::answer::Question;
use hawser_host::portal::{judge, read};
use hawser_wire::control::Message;
use hawser_wire::nat64::Announced;

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let entries = std::fs::read_dir(&directory).expect("every target has a corpus");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
        .into_iter()
        .map(|path| (path.clone(), std::fs::read(path).expect("readable")))
        .collect()
}

/// Returns the hand-made inputs. libFuzzer names its own inputs by a SHA-1 of 40 digits.
fn seeds(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let mut inputs = corpus(target);
    inputs.retain(|(path, _)| path.file_name().is_none_or(|name| name.len() != 40));
    inputs
}

#[test]
fn every_target_stands_its_corpus() {
    for (name, target) in hawser_fuzz::TARGETS {
        let inputs = corpus(name);
        assert!(!inputs.is_empty(), "{name}");
        inputs.iter().for_each(|(_, input)| target(input));
    }
}

/// A corpus that a parser rejects at the first byte would find no defect.
#[test]
fn the_corpus_reaches_every_message_and_every_way_to_fail() {
    let (mut messages, mut errors) = (Vec::new(), Vec::new());
    for (_, input) in seeds("control") {
        let mut rest = &input[..];
        let end = loop {
            match Message::parse(rest) {
                Ok(Some((message, taken))) => {
                    messages.push(discriminant(&message));
                    rest = &rest[taken..];
                }
                Ok(None) => break None,
                Err(error) => break Some(discriminant(&error)),
            }
        };
        errors.extend(end);
    }
    assert_eq!(messages.into_iter().collect::<HashSet<_>>().len(), 22);
    assert_eq!(errors.into_iter().collect::<HashSet<_>>().len(), 5);

    let (mut good, mut errors) = (0, HashSet::new());
    for (_, input) in seeds("invitation") {
        match String::from_utf8_lossy(&input).parse::<Invitation>() {
            Ok(_) => good += 1,
            Err(error) => drop(errors.insert(discriminant(&error))),
        }
    }
    assert_eq!((good, errors.len()), (5, 7));

    let question = Question::parse(QUERY).expect("a question");
    let answers = seeds("dns").into_iter().map(|(_, input)| question.read(&input));
    let counts: Vec<_> = answers.flatten().map(|answer| answer.addresses.len()).collect();
    assert_eq!((counts.len(), counts.iter().sum::<usize>()), (7, 5));

    let page: Page = PAGE.parse().expect("a page");
    let (mut outcomes, mut logins) = ([0; 3], 0);
    for (_, input) in seeds("portal") {
        let (outcome, login) = judge(&input, &page);
        outcomes[outcome as usize] += 1;
        logins += usize::from(login.is_some());
    }
    assert_eq!((outcomes, logins), ([2, 4, 3], 1));

    let (mut outcomes, mut logins, mut lasting) = ([0; 3], 0, 0);
    for found in seeds("capport").iter().filter_map(|(_, input)| read(input)) {
        outcomes[found.outcome as usize] += 1;
        logins += usize::from(found.login.is_some());
        lasting += usize::from(found.left.is_said());
    }
    assert_eq!((outcomes, logins, lasting), ([3, 4, 0], 3, 2));

    let options = seeds("nat64");
    let options = options.iter().filter_map(|(_, input)| Announced::parse(input));
    let lifetimes: Vec<_> = options.map(|announced| announced.lifetime.as_secs()).collect();
    assert_eq!(lifetimes, [1_800, 600]);
}

#[test]
fn every_target_stands_inputs_cut_short() {
    for (name, target) in hawser_fuzz::TARGETS {
        for (_, input) in seeds(name) {
            (0..input.len().min(300)).for_each(|len| target(&input[..len]));
        }
    }
}

/// The damages are those that a fuzzer tries first: one to four bytes overwritten, a range repeated
/// or omitted.
#[test]
fn every_target_stands_damaged_inputs() {
    let mut state = 1u64;
    let mut draw = move |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    for (name, target) in hawser_fuzz::TARGETS {
        for (path, input) in seeds(name) {
            for _ in 0..2_000 {
                let mut damaged = input.clone();
                let at = draw(damaged.len());
                match draw(4) {
                    0 => drop(damaged.drain(at..(at + draw(20)).min(input.len()))),
                    1 => damaged.extend_from_slice(&input[at..]),
                    _ => (0..=draw(4)).for_each(|_| {
                        let at = draw(damaged.len());
                        if let Some(byte) = damaged.get_mut(at) {
                            *byte = [0, 1, 0x7f, 0x80, 0xff, b'0', b'"', draw(256) as u8][draw(8)];
                        }
                    }),
                }
                if std::panic::catch_unwind(|| target(&damaged)).is_err() {
                    panic!("{name}, from {}: {damaged:?}", path.display());
                }
            }
        }
    }
}
