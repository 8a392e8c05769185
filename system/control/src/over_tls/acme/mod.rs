//! A hub's certificate from an authority, by ACME (RFC 8555).
//!
//! ```text
//!   no certificate, or a third of its time is left --> order --> the authority connects to the
//!   hub's TCP port and asks for `acme-tls/1` (RFC 8737) --> certificate --> shown, kept in a file
//! ```
//!
//! The authority connects to the port that clients use, so no other port must be opened. Until
//! there is a certificate, and while an authority refuses one, the hub presents the last one, or
//! one of its own key. Clients do not depend on it (see the module [`super`]).
//!
//! [`Acme::start`] is the entry point; [`https`] sends the requests.

mod https;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow, bail};
use hawser_config::{AcmeConfig, atomic_file};
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, Error, Identifier, NewAccount, NewOrder,
    Order, OrderStatus, RetryPolicy,
};
use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::sleep;
use zeroize::Zeroizing;

use super::certificate::PresentedCertificate;
use https::Https;

/// Task that maintains a certificate until it is dropped.
pub struct Acme {
    names: Vec<String>,
    told: Arc<Mutex<AcmeStatus>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Acme {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// State for `hawser status`.
#[derive(Default)]
struct AcmeStatus {
    /// End of the certificate's validity. Units: s since 1970.
    until: Option<u64>,
    /// Reason why there is no newer certificate.
    trouble: Option<String>,
}

impl Acme {
    /// Presents the certificate that is stored in `dir`, and starts to renew it.
    pub fn start(config: AcmeConfig, dir: &Path, shown: PresentedCertificate) -> Self {
        let told = Arc::new(Mutex::new(AcmeStatus::default()));
        let names = config.names.clone();
        let mut keeper = Keeper {
            kept: InheritedDescriptor::default(),
            file: dir.join(FILE),
            config,
            shown,
            told: Arc::clone(&told),
            has_ordered: false,
        };
        if let Err(error) = keeper.read() {
            let error = format!("{error:#}");
            tracing::warn!(
                error,
                "the stored certificate cannot be used: requesting a new one"
            );
        }
        let task = hawser_linux::tasks::spawn(keeper.keep());
        Self { names, told, task }
    }

    /// Returns the names, the end of the certificate's validity (seconds since 1970), and the
    /// reason why there is no newer one.
    pub fn status(&self) -> Value {
        let told = self.told.lock().expect("no holder panics");
        json!({ "names": self.names, "until_s": told.until, "trouble": told.trouble })
    }
}

/// Saved state for a restart: a file that only its owner can read.
#[derive(Default, Serialize, Deserialize)]
struct InheritedDescriptor {
    /// Authority of the account.
    directory: String,
    /// Serialised [`AccountCredentials`]: they are parsed again for each attempt.
    account: Option<Value>,
    /// Names of the certificate.
    names: Vec<String>,
    /// PEM of the certificate and its chain.
    chain: String,
    /// PEM of the key.
    key: Zeroizing<String>,
}

struct Keeper {
    config: AcmeConfig,
    file: PathBuf,
    shown: PresentedCertificate,
    told: Arc<Mutex<AcmeStatus>>,
    kept: InheritedDescriptor,
    /// Set if the last attempt reached an order: authorities count those that fail.
    has_ordered: bool,
}

impl Keeper {
    /// Reads the state of an earlier run, and presents its certificate.
    fn read(&mut self) -> anyhow::Result<()> {
        let text = match std::fs::read(&self.file) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error).with_context(|| self.file.display().to_string()),
        };
        let kept: InheritedDescriptor =
            serde_json::from_slice(&text).with_context(|| self.file.display().to_string())?;
        if kept.directory != self.config.directory {
            return Ok(());
        }
        self.kept = kept;
        if self.kept.names == self.config.names {
            self.show()?;
        }
        Ok(())
    }

    /// Presents the stored certificate.
    fn show(&self) -> anyhow::Result<()> {
        let chain =
            CertificateDer::pem_slice_iter(self.kept.chain.as_bytes()).collect::<Result<Vec<_>, _>>()?;
        let first = chain.first().context("no certificate is in it")?;
        let (_, until) = validity(first)?;
        let key = PrivateKeyDer::from_pem_slice(self.kept.key.as_bytes())?;
        self.shown.show(CertifiedKey::from_der(
            chain,
            key,
            &aws_lc_rs::default_provider(),
        )?);
        self.told.lock().expect("no holder panics").until = Some(until);
        Ok(())
    }

    /// Returns when the certificate must be replaced: immediately, unless there is one for these
    /// names. Units: s since 1970.
    fn due(&self) -> u64 {
        if self.kept.names != self.config.names {
            return 0;
        }
        let first = CertificateDer::from_pem_slice(self.kept.chain.as_bytes());
        let Ok((from, until)) = first
            .map_err(anyhow::Error::from)
            .and_then(|first| validity(&first))
        else {
            return 0;
        };
        until - until.saturating_sub(from) / RENEWED_BEFORE
    }

    async fn keep(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let left = self.due().saturating_sub(now());
            if left > 0 {
                // The clock may be changed in the meantime.
                sleep(Duration::from_secs(left).min(POLL_INTERVAL)).await;
                continue;
            }
            let got = self.obtain().await;
            self.shown.forget_answers();
            let trouble = match got {
                Ok(()) => {
                    tracing::info!(names = self.config.names.join(", "), "the hub has a certificate");
                    pause = FIRST_PAUSE;
                    None
                }
                Err(error) => Some(plain(&format!("{error:#}"))),
            };
            self.told
                .lock()
                .expect("no holder panics")
                .trouble
                .clone_from(&trouble);
            if let Some(trouble) = trouble {
                if self.has_ordered {
                    pause = pause.max(PAUSE_AFTER_ORDER);
                }
                let again_s = pause.as_secs();
                tracing::warn!(trouble, again_s, "no certificate from the authority");
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// Orders a certificate, presents and stores it.
    async fn obtain(&mut self) -> anyhow::Result<()> {
        self.has_ordered = false;
        let account = self.account().await?;
        let names: Vec<_> = self.config.names.iter().cloned().map(Identifier::Dns).collect();
        let mut order = match account.new_order(&NewOrder::new(&names)).await {
            Err(Error::Api(problem)) if problem.r#type.as_deref() == Some(NO_ACCOUNT) => {
                self.kept.account = None;
                bail!("the authority no longer knows the account; a new one will be created");
            }
            other => other?,
        };
        self.has_ordered = true;
        self.answer(&mut order).await?;
        let retries = RetryPolicy::default().timeout(AUTHORITY_TIMEOUT);
        let status = order.poll_ready(&retries).await.context(NOT_FOUND)?;
        if status != OrderStatus::Ready {
            return Err(refusal(&mut order).await.context(NOT_FOUND));
        }
        let key = Zeroizing::new(order.finalize().await?);
        let chain = order.poll_certificate(&retries).await?;
        (self.kept.names, self.kept.chain, self.kept.key) = (self.config.names.clone(), chain, key);
        self.show()?;
        self.write()
    }

    /// Returns the account at the authority, and creates a missing one.
    async fn account(&mut self) -> anyhow::Result<Account> {
        let https = Https::new(self.config.ca.as_deref())?;
        let builder = Account::builder_with_http(Box::new(https));
        if let Some(known) = &self.kept.account {
            let known: AccountCredentials = serde_json::from_value(known.clone())?;
            return Ok(builder.from_credentials(known).await?);
        }
        let contact = self.config.contact.as_ref().map(|mail| format!("mailto:{mail}"));
        let contact: Vec<_> = contact.as_deref().into_iter().collect();
        let asked = NewAccount {
            contact: &contact,
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let directory = self.config.directory.clone();
        let (account, credentials) = builder.create(&asked, directory.clone(), None).await?;
        self.kept.directory = directory;
        self.kept.account = Some(serde_json::to_value(credentials)?);
        self.write()?;
        Ok(account)
    }

    /// Publishes the answers to the authority's challenges, and requests their verification.
    async fn answer(&self, order: &mut Order) -> anyhow::Result<()> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            if authorization.status == AuthorizationStatus::Valid {
                continue;
            }
            let mut challenge = authorization
                .challenge(ChallengeType::TlsAlpn01)
                .context("the authority does not support tls-alpn-01")?;
            let name = challenge.identifier().to_string();
            let digest = challenge.key_authorization();
            let answer = answer_for(&name, digest.digest().as_ref())?;
            self.shown.answer(name, answer);
            // A quick authority refuses the name in its answer already.
            challenge.set_ready().await.context(NOT_FOUND)?;
        }
        Ok(())
    }

    fn write(&self) -> anyhow::Result<()> {
        let text = Zeroizing::new(serde_json::to_vec_pretty(&self.kept)?);
        atomic_file::write(&self.file, &text, 0o600)
    }
}

/// Returns the certificate that proves a name to an authority (RFC 8737 section 3).
fn answer_for(name: &str, digest: &[u8]) -> anyhow::Result<CertifiedKey> {
    let mut params = rcgen::CertificateParams::new(vec![name.to_owned()])?;
    params.custom_extensions = vec![rcgen::CustomExtension::new_acme_identifier(digest)];
    let pair = rcgen::KeyPair::generate()?;
    let certificate = params.self_signed(&pair)?;
    let key = PrivatePkcs8KeyDer::from(pair.serialize_der()).into();
    let key = aws_lc_rs::default_provider().key_provider.load_private_key(key)?;
    // `from_der` would parse it, and the TLS library does not know the extension.
    Ok(CertifiedKey::new(vec![certificate.der().clone()], key))
}

/// Returns the authority's reasons for names without proof.
async fn refusal(order: &mut Order) -> anyhow::Error {
    let mut said = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let Ok(state) = authorization.refresh().await else {
            continue;
        };
        let name = state.identifier().to_string();
        let errors = state
            .challenges
            .iter()
            .filter_map(|challenge| challenge.error.as_ref());
        said.extend(errors.map(|error| format!("{name}: {error}")));
    }
    if said.is_empty() {
        return anyhow!("the authority gives no reason");
    }
    anyhow!("{}", said.join("; "))
}

/// Returns the validity of a certificate. Units: s since 1970.
///
/// The TLS library reports it when it verifies the certificate at a time outside the validity.
fn validity(certificate: &CertificateDer<'_>) -> anyhow::Result<(u64, u64)> {
    let parsed = ParsedCertificate::try_from(certificate)?;
    let at = |second| {
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &RootCertStore::empty(),
            &[],
            UnixTime::since_unix_epoch(Duration::from_secs(second)),
            aws_lc_rs::default_provider()
                .signature_verification_algorithms
                .all,
        )
    };
    let from = match at(0) {
        Err(rustls::Error::InvalidCertificate(rustls::CertificateError::NotValidYetContext {
            not_before,
            ..
        })) => not_before.as_secs(),
        _ => 0,
    };
    match at(YEAR_9999) {
        Err(rustls::Error::InvalidCertificate(rustls::CertificateError::ExpiredContext {
            not_after,
            ..
        })) => Ok((from, not_after.as_secs())),
        _ => bail!("the certificate has no end date"),
    }
}

/// Returns one line of limited length from a text that an authority may have written in part.
fn plain(text: &str) -> String {
    text.chars()
        .filter(|letter| !letter.is_control())
        .take(LONGEST_TROUBLE)
        .collect()
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// File name in the hub's directory.
const FILE: &str = "acme.json";
/// Inverse of the remaining share of validity at which a certificate is replaced. Source: the
/// integration guide of Let's Encrypt.
const RENEWED_BEFORE: u64 = 3;
/// Interval of checks of the time. Source: our choice; after a change of the clock a certificate is
/// replaced late by at most this, of weeks.
const POLL_INTERVAL: Duration = Duration::from_secs(3600);
/// Pause after the first error, doubled by each that follows: a network may come up after the hub.
/// Source: our choice; a shorter one burdens an authority with errors that last, a longer one
/// leaves a new hub without a certificate.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// Minimum pause after a name was not proven. Source: Let's Encrypt allows five failures per name
/// and hour; with doubled pauses these are four, after 0, 5, 15 and 35 minutes.
const PAUSE_AFTER_ORDER: Duration = Duration::from_secs(300);
/// Maximum pause while a name remains unproven. Source: our choice, two attempts a day; a longer
/// one delays the repair after an operator has corrected the name.
const LONGEST_PAUSE: Duration = Duration::from_secs(12 * 3600);
/// Timeout of an authority's validation and of its signature. Source: our choice; a shorter one
/// orders again what is still being validated, a longer one delays the report of an error.
const AUTHORITY_TIMEOUT: Duration = Duration::from_secs(90);
/// Explanation of a failed order.
const NOT_FOUND: &str = "the authority cannot reach this hub by its names";
/// Maximum length of a reason. Units: letters. Source: our choice, some six lines of a terminal;
/// the text comes from the authority.
const LONGEST_TROUBLE: usize = 500;
/// Error type for a missing account, RFC 8555 section 6.7.
const NO_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";
/// Latest time in a certificate, 31 December 9999 (RFC 5280 section 4.1.2.5).
const YEAR_9999: u64 = 253_402_300_799;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a certificate that is valid from January to March 2026.
    fn certificate() -> rcgen::Certificate {
        let mut params = rcgen::CertificateParams::new(vec!["hub.example.org".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2026, 4, 1);
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap()
    }

    #[test]
    fn the_library_says_from_when_until_when_a_certificate_is_valid() {
        let made = certificate();
        assert_eq!(validity(made.der()).unwrap(), (1_767_225_600, 1_775_001_600));
        assert!(validity(&CertificateDer::from(vec![0x30, 0x00])).is_err());
    }

    #[test]
    fn a_certificate_is_due_when_a_third_of_its_time_is_left() {
        let made = certificate();
        let body = data_encoding::BASE64.encode(made.der());
        let mut keeper = Keeper {
            config: AcmeConfig::for_names(&["hub.example.org"]),
            file: PathBuf::new(),
            shown: PresentedCertificate::new(&hawser_config::identity::Identity::generate().unwrap(), None)
                .unwrap(),
            told: Arc::default(),
            kept: InheritedDescriptor::default(),
            has_ordered: false,
        };
        assert_eq!(keeper.due(), 0, "there is none");
        keeper.kept.chain = format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n");
        keeper.kept.names = vec!["hub.example.org".to_owned()];
        assert_eq!(keeper.due(), 1_775_001_600 - 30 * 24 * 3600);
        keeper.config = AcmeConfig::for_names(&["other.example.org"]);
        assert_eq!(keeper.due(), 0, "it is of another name");
    }
}
