//! What every daemon does with a configuration file that has changed.

/// The keys that differ and wait for a restart.
pub fn differing(keys: &[(&'static str, bool)]) -> Vec<&'static str> {
    let differing = keys.iter().filter(|(_, differs)| *differs);
    differing.map(|(key, _)| *key).collect()
}

/// Says how it went: what was applied, but for the keys that wait for a restart.
pub fn log_reload(result: anyhow::Result<Vec<impl std::fmt::Debug>>) {
    match result {
        Ok(restart) if restart.is_empty() => tracing::info!("configuration applied"),
        Ok(restart) => tracing::warn!(needs_restart = ?restart, "configuration applied, but for these"),
        Err(error) => tracing::error!(error = format!("{error:#}"), "configuration not applied"),
    }
}
