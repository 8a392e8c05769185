//! Claims of the papers: data with sources, embedded in the program.
//!
//! One file per paper under `claims/`. A set-up lists what its paper states and leaves open. A
//! claim has either an interval to accept (`accept`, with `unit` and, if known, the `paper`'s own
//! number), or a shape to check (`check`), or neither if its number is lost. `device = true` marks
//! claims that only hardware or the real data path can show. `deviates` is the reviewed reason why
//! a measurement outside the interval is accepted: an error in the paper, or a lost set-up.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde::Deserialize;

use super::quantity::Unit;

/// Paper and its claims.
#[derive(Clone, Debug, PartialEq)]
pub struct Paper {
    /// Short name here, such as `piconet`.
    pub id: String,
    /// Name in the reference tables, such as `handheld`.
    pub alias: String,
    /// Title or subject.
    pub title: String,
    /// Evaluations, in the order of the text.
    pub setups: Vec<Setup>,
}

/// Evaluation of a paper.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Identifier, e.g. `H-tab2`.
    pub id: String,
    /// Table, figure or section.
    pub place: String,
    /// Title.
    pub title: String,
    /// Method as stated by the paper.
    pub stated: String,
    /// Unstated parts of the method, and known facts about them.
    pub unstated: String,
    /// Claims.
    pub claims: Vec<Claim>,
}

/// Statement that a measurement can meet or miss.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// Identifier, e.g. `H.tab2.n2.random`.
    pub id: String,
    /// Measured quantity.
    pub metric: String,
    /// Accepted values.
    pub expected: Expected,
    /// Source within the paper.
    pub source: Source,
    /// Set if only hardware or the real data path can show it.
    pub is_device: bool,
    /// Note for the reader.
    pub note: String,
    /// Reason why a measurement outside the interval is accepted.
    pub deviates: Option<String>,
}

/// Accepted values of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    /// A number within bounds, both included.
    Interval {
        /// Number printed in the paper, if it is known.
        paper: Option<f64>,
        /// Minimum accepted value.
        low: f64,
        /// Maximum accepted value.
        high: f64,
        /// Unit of all three numbers.
        unit: Unit,
    },
    /// A relation between numbers, as text.
    Shape {
        /// The relation.
        check: String,
    },
    /// The number is lost: it can no longer be read.
    Lost,
}

/// Source of a claim within a paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A table.
    Table,
    /// The text.
    Prose,
    /// A figure whose data points are lost.
    Lost,
}

/// Error in the claims data.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClaimsError {
    /// The file has an invalid format.
    #[error("claims: {0}")]
    Syntax(String),
    /// A claim is inconsistent.
    #[error("claim {id}: {problem}")]
    Claim {
        /// Claim.
        id: String,
        /// Contradiction.
        problem: &'static str,
    },
    /// Two items have the same name.
    #[error("{0} is listed twice")]
    Twice(String),
}

/// A selected name is unknown.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "nothing is called {name:?}; write a paper ({papers}), a set-up like H-tab2, a claim like H.tab2.n2.rr, or the start of one like H.tab2"
)]
pub struct UnknownSelection {
    name: String,
    papers: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPaper {
    id: String,
    alias: String,
    title: String,
    #[serde(rename = "setup")]
    setups: Vec<RawSetup>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSetup {
    id: String,
    place: String,
    title: String,
    #[serde(default)]
    stated: String,
    #[serde(default)]
    unstated: String,
    #[serde(rename = "claim", default)]
    claims: Vec<RawClaim>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawClaim {
    id: String,
    metric: String,
    paper: Option<f64>,
    accept: Option<[f64; 2]>,
    unit: Option<Unit>,
    check: Option<String>,
    source: Source,
    #[serde(default)]
    device: bool,
    #[serde(default)]
    note: String,
    deviates: Option<String>,
}

/// Returns all papers, in the order in which the program prints them.
///
/// # Panics
/// Never: a test reads the embedded data.
#[must_use]
pub fn papers() -> &'static [Paper] {
    static PAPERS: LazyLock<Vec<Paper>> =
        LazyLock::new(|| parse_all(&FILES).expect("the embedded claims are tested"));
    &PAPERS
}

/// Returns the claims that `names` select, in the order of the papers; all claims without names.
///
/// A name is that of a paper, a set-up or a claim, or the prefix of claims up to one of their dots.
/// Case is ignored.
///
/// # Errors
/// [`UnknownSelection`] for the first name that selects nothing.
pub fn select(
    names: &[String],
) -> Result<Vec<(&'static Paper, &'static Setup, &'static Claim)>, UnknownSelection> {
    let all: Vec<_> = papers()
        .iter()
        .flat_map(|paper| paper.setups.iter().map(move |setup| (paper, setup)))
        .flat_map(|(paper, setup)| setup.claims.iter().map(move |claim| (paper, setup, claim)))
        .collect();
    let has_unknown = |name: &&String| !all.iter().any(|(p, s, c)| is_selected(name, p, s, c));
    if let Some(name) = names.iter().find(has_unknown) {
        let papers: Vec<&str> = papers().iter().map(|paper| paper.id.as_str()).collect();
        return Err(UnknownSelection {
            name: name.clone(),
            papers: papers.join(", "),
        });
    }
    let is_wanted = |p: &Paper, s: &Setup, c: &Claim| {
        names.is_empty() || names.iter().any(|name| is_selected(name, p, s, c))
    };
    Ok(all.into_iter().filter(|(p, s, c)| is_wanted(p, s, c)).collect())
}

fn is_selected(name: &str, paper: &Paper, setup: &Setup, claim: &Claim) -> bool {
    let is_start = || {
        claim
            .id
            .get(..name.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(name))
            && claim.id[name.len()..].starts_with('.')
    };
    [&paper.id, &paper.alias, &setup.id, &claim.id]
        .iter()
        .any(|id| id.eq_ignore_ascii_case(name))
        || is_start()
}

fn parse_all(files: &[&str]) -> Result<Vec<Paper>, ClaimsError> {
    let papers: Vec<Paper> = files
        .iter()
        .map(|text| {
            let raw: RawPaper =
                toml::from_str(text).map_err(|error| ClaimsError::Syntax(error.to_string()))?;
            paper(raw)
        })
        .collect::<Result<_, _>>()?;
    let mut names = BTreeSet::new();
    for paper in &papers {
        let setups = paper.setups.iter().map(|setup| &setup.id);
        let claims = paper
            .setups
            .iter()
            .flat_map(|setup| &setup.claims)
            .map(|claim| &claim.id);
        if let Some(name) = setups.chain(claims).find(|name| !names.insert((*name).clone())) {
            return Err(ClaimsError::Twice(name.clone()));
        }
    }
    Ok(papers)
}

fn paper(raw: RawPaper) -> Result<Paper, ClaimsError> {
    let setups = raw
        .setups
        .into_iter()
        .map(|raw| {
            Ok(Setup {
                claims: raw.claims.into_iter().map(claim).collect::<Result<_, _>>()?,
                id: raw.id,
                place: raw.place,
                title: raw.title,
                stated: raw.stated,
                unstated: raw.unstated,
            })
        })
        .collect::<Result<_, _>>()?;
    Ok(Paper {
        id: raw.id,
        alias: raw.alias,
        title: raw.title,
        setups,
    })
}

fn claim(raw: RawClaim) -> Result<Claim, ClaimsError> {
    let expected = expected(&raw).map_err(|problem| ClaimsError::Claim {
        id: raw.id.clone(),
        problem,
    })?;
    Ok(Claim {
        id: raw.id,
        metric: raw.metric,
        expected,
        source: raw.source,
        is_device: raw.device,
        note: raw.note,
        deviates: raw.deviates.filter(|reason| !reason.trim().is_empty()),
    })
}

fn expected(raw: &RawClaim) -> Result<Expected, &'static str> {
    match (raw.accept, raw.unit, &raw.check) {
        (Some([low, high]), Some(unit), None) => {
            if !(low.is_finite() && high.is_finite() && low < high) {
                return Err("its interval is empty; write accept = [low, high]");
            }
            if raw.paper.is_some_and(|paper| !(low..=high).contains(&paper)) {
                return Err("its interval does not hold the paper's own number");
            }
            Ok(Expected::Interval {
                paper: raw.paper,
                low,
                high,
                unit,
            })
        }
        (None, None, Some(check)) => Ok(Expected::Shape { check: check.clone() }),
        (None, None, None) if raw.source == Source::Lost => Ok(Expected::Lost),
        (None, None, None) => Err("it says nothing; write accept and unit, or check"),
        (Some(_), None, _) => Err("its interval has no unit"),
        _ => Err("it has an interval and a check; split it in two"),
    }
}

const FILES: [&str; 5] = [
    include_str!("../../claims/juggler.toml"),
    include_str!("../../claims/all-aps.toml"),
    include_str!("../../claims/piconet.toml"),
    include_str!("../../claims/flow-switch.toml"),
    include_str!("../../claims/multifacet.toml"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn all_claims_are_listed() {
        parse_all(&FILES).expect("good data");
        let count = |id: &str| select(&names(&[id])).map(|claims| claims.len());
        assert_eq!(select(&[]).expect("everything").len(), 363);
        assert_eq!(papers().iter().map(|paper| paper.setups.len()).sum::<usize>(), 72);
        assert_eq!(count("juggler"), Ok(35));
        assert_eq!(count("nsdi15"), Ok(102));
        assert_eq!(count("piconet"), Ok(138));
        assert_eq!(count("flow-switch"), Ok(16));
        assert_eq!(count("Multifacet"), Ok(72));
        for (_, setup, claim) in select(&[]).expect("everything") {
            assert_eq!(setup.id.chars().next(), claim.id.chars().next(), "{}", claim.id);
            let is_lost = matches!(claim.expected, Expected::Lost);
            assert_eq!(is_lost, claim.source == Source::Lost, "{}", claim.id);
        }
    }

    #[test]
    fn every_setup_has_claims_and_says_what_it_is() {
        for setup in papers().iter().flat_map(|paper| &paper.setups) {
            assert!(!setup.claims.is_empty(), "{}", setup.id);
            assert!(!setup.title.is_empty() && !setup.place.is_empty(), "{}", setup.id);
        }
    }

    #[test]
    fn selects_by_paper_setup_claim_and_start_of_a_claim() {
        let ids = |list: &[&str]| -> Vec<&str> {
            let claims = select(&names(list)).expect("known");
            claims
                .into_iter()
                .map(|(_, _, claim)| claim.id.as_str())
                .collect()
        };
        assert_eq!(ids(&["H.hettcp.rr"]), ["H.hettcp.rr"]);
        assert_eq!(ids(&["h-cbrdyn", "H.cbrdyn.mono"]), ["H.cbrdyn.mono"], "once");
        assert_eq!(ids(&["A.fig7"]), ["A.fig7.laptop", "A.fig7.phone"]);
        assert_eq!(
            ids(&["A.fig9", "J.sec3.4"])[0],
            "J.sec3.4.w9",
            "in the order of the papers"
        );
        let unknown = select(&names(&["A.fig7", "H.tab"])).expect_err("no such claim");
        assert!(
            unknown.to_string().starts_with("nothing is called \"H.tab\""),
            "{unknown}"
        );
    }

    #[test]
    fn refuses_claims_that_contradict_themselves() {
        let with = |claim: &str| {
            let text = format!(
                "id=\"a\"\nalias=\"a\"\ntitle=\"a\"\n[[setup]]\nid=\"S\"\nplace=\"p\"\ntitle=\"t\"\n[[setup.claim]]\nid=\"S.1\"\nmetric=\"m\"\nsource=\"table\"\n{claim}"
            );
            parse_all(&[&text]).map_err(|error| error.to_string())
        };
        assert!(with("accept=[1,2]\nunit=\"s\"").is_ok());
        for (claim, problem) in [
            ("accept=[2,1]\nunit=\"s\"", "empty"),
            ("accept=[1,2]", "no unit"),
            ("paper=3\naccept=[1,2]\nunit=\"s\"", "own number"),
            ("", "says nothing"),
            ("check=\"a\"\naccept=[1,2]\nunit=\"s\"", "split"),
            ("accept=[1,2]\nunit=\"furlong\"", "furlong"),
            ("accepted=[1,2]", "accepted"),
            (
                "check=\"a\"\n[[setup.claim]]\nid=\"S.1\"\nmetric=\"m\"\nsource=\"table\"\ncheck=\"b\"",
                "twice",
            ),
        ] {
            let found = with(claim).expect_err(claim);
            assert!(found.contains(problem), "{claim}: {found}");
        }
    }
}
