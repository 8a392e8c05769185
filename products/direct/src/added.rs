//! Rules that a user adds while direct mode runs: until its end they precede those of the
//! configuration, the latest first.

use std::collections::BTreeMap;

use anyhow::{Context, anyhow, bail};
use hawser_config::{ClientConfig, RuleConfig};
use serde_json::{Value, json};

use super::Direct;

/// Numbers of the added rules, used to remove them, in the order of the rules.
#[derive(Debug, Default)]
pub(super) struct Added {
    numbers: Vec<u32>,
    last: u32,
}

impl Added {
    /// Yields the number of each rule of the configuration; `None` for those of its file.
    pub(super) fn numbers(&self) -> impl Iterator<Item = Option<u32>> {
        let added = self.numbers.iter().copied().map(Some);
        added.chain(std::iter::repeat(None))
    }
}

impl Direct {
    /// Adds a rule, given by the keys of a `[[rule]]` table with their values. Existing flows keep
    /// their network.
    ///
    /// # Errors
    /// If the rule is invalid, is not supported here, or exceeds the maximum number.
    pub(super) fn add_rule(&mut self, words: &BTreeMap<String, String>) -> anyhow::Result<Value> {
        if self.added.numbers.len() >= MAX {
            bail!(
                "{MAX} rules have been added, which is the maximum: remove some, or write them into client.toml"
            );
        }
        let rule = RuleConfig::of_words(words).map_err(|problem| anyhow!(problem))?;
        if rule.chooses_in_vain(self.tunnel_access.has_hub()) {
            bail!(
                "the rule's flows use the hub, over all networks: add --via direct to send them outside the tunnel over the network of the rule"
            );
        }
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
    /// If no added rule has this number.
    pub(super) fn remove_rule(&mut self, number: u32) -> anyhow::Result<Value> {
        let at = self.added.numbers.iter().position(|known| *known == number);
        let at = at.with_context(|| {
            format!("there is no added rule {number}: rules of client.toml are removed in that file")
        })?;
        let mut fresh = self.config.clone();
        let said = fresh.rules.remove(at).to_string();
        self.take_rules(fresh)?;
        self.added.numbers.remove(at);
        tracing::info!(rule = said, number, "rule removed");
        Ok(json!({ "number": number, "rule": said }))
    }

    /// Inserts the added rules before those of a newly read configuration.
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

/// Maximum number of added rules: a flow stores its rule in one byte, so at most some 200 can be
/// distinguished. Source: our choice, half of them, so that rules of the configuration have the
/// other half.
const MAX: usize = 100;
