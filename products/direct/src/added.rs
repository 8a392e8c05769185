//! Rules that a user adds while direct mode runs: until it ends, they stand before those of the
//! configuration, the latest first.

use std::collections::BTreeMap;

use anyhow::{Context, anyhow, bail};
use hawser_config::{ClientConfig, RuleConfig};
use serde_json::{Value, json};

use super::Direct;

/// The numbers by which rules that were added are removed, in the order of the rules.
#[derive(Debug, Default)]
pub(super) struct Added {
    numbers: Vec<u32>,
    last: u32,
}

impl Added {
    /// The number of each rule of the configuration; `None` for those of its file.
    pub(super) fn numbers(&self) -> impl Iterator<Item = Option<u32>> {
        let added = self.numbers.iter().copied().map(Some);
        added.chain(std::iter::repeat(None))
    }
}

impl Direct {
    /// Adds a rule: keys of a `[[rule]]` table with their values. Flows that are there stay where
    /// they are.
    ///
    /// # Errors
    /// It is no rule, it does not fit here, or there are too many.
    pub(super) fn add_rule(&mut self, words: &BTreeMap<String, String>) -> anyhow::Result<Value> {
        if self.added.numbers.len() >= MOST {
            bail!("{MOST} rules have been added: remove some, or write them into client.toml");
        }
        let rule = RuleConfig::of_words(words).map_err(|problem| anyhow!(problem))?;
        let said = rule.to_string();
        let mut fresh = self.config.clone();
        fresh.rules.insert(0, rule);
        self.take_rules(fresh)?;
        self.added.last += 1;
        self.added.numbers.insert(0, self.added.last);
        tracing::info!(rule = said, number = self.added.last, "rule added");
        Ok(json!({ "number": self.added.last, "rule": said }))
    }

    /// Removes a rule that was added.
    ///
    /// # Errors
    /// No rule that was added has this number.
    pub(super) fn remove_rule(&mut self, number: u32) -> anyhow::Result<Value> {
        let at = self.added.numbers.iter().position(|known| *known == number);
        let at = at.with_context(|| {
            format!("no rule that was added has number {number}: those of client.toml are removed there")
        })?;
        let mut fresh = self.config.clone();
        let said = fresh.rules.remove(at).to_string();
        self.take_rules(fresh)?;
        self.added.numbers.remove(at);
        tracing::info!(rule = said, number, "rule removed");
        Ok(json!({ "number": number, "rule": said }))
    }

    /// Puts the rules that were added before those of a configuration that was read.
    pub(super) fn add_rules_to(&self, fresh: &mut ClientConfig) {
        let added = self.config.rules.iter().take(self.added.numbers.len());
        fresh.rules.splice(0..0, added.cloned());
    }

    fn take_rules(&mut self, fresh: ClientConfig) -> anyhow::Result<()> {
        if let Some(problem) = self.unfit(&fresh) {
            bail!("{problem}");
        }
        self.rules = self.rules.with(&fresh);
        self.naming.handle_config(&fresh);
        self.config = fresh;
        Ok(())
    }
}

/// A flow remembers its rule in one byte: more than some 200 would not be told apart.
const MOST: usize = 100;
