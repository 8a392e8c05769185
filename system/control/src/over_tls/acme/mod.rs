//! A hub's certificate from an authority, by ACME (RFC 8555).
//!
//! ```text
//!   no certificate, or a third of its time is left --> order --> the authority connects to the
//!   hub's TCP port and asks for `acme-tls/1` (RFC 8737) --> certificate --> shown, kept in a file
//! ```
//!
//! The authority looks at the port where clients come in, so nothing else has to be opened. Until
//! there is a certificate, and while an authority refuses one, the hub shows what it has: the last
//! one, or one of its own key. Clients do not depend on it (see the module [`super`]).
//!
//! [`Acme::start`] is the entry; [`https`] carries the requests.

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

use super::certificate::Shown;
use https::Https;

/// Keeps a certificate as long as it lives.
pub struct Acme {
    names: Vec<String>,
    told: Arc<Mutex<Told>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Acme {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// For `hawser status`.
#[derive(Default)]
struct Told {
    /// When the certificate ends. Units: s since 1970.
    until: Option<u64>,
    /// Why there is no newer one.
    trouble: Option<String>,
}

impl Acme {
    /// Shows the certificate that is kept in `dir`, and begins to see to it.
    pub fn start(config: AcmeConfig, dir: &Path, shown: Shown) -> Self {
        let told = Arc::new(Mutex::new(Told::default()));
        let names = config.names.clone();
        let mut keeper = Keeper {
            kept: Kept::default(),
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
                "the certificate that was kept is of no use: another is asked for"
            );
        }
        let task = hawser_linux::tasks::spawn(keeper.keep());
        Self { names, told, task }
    }

    /// The names, when the certificate ends (seconds since 1970), and why there is no newer one.
    pub fn status(&self) -> Value {
        let told = self.told.lock().expect("no holder panics");
        json!({ "names": self.names, "until_s": told.until, "trouble": told.trouble })
    }
}

/// What a restart finds again: a file that only its owner reads.
#[derive(Default, Serialize, Deserialize)]
struct Kept {
    /// The authority that knows the account.
    directory: String,
    /// What [`AccountCredentials`] are in JSON: they are read anew for each attempt.
    account: Option<Value>,
    /// What the certificate is for.
    names: Vec<String>,
    /// In PEM: the certificate, and those that lead to its issuer.
    chain: String,
    /// In PEM.
    key: Zeroizing<String>,
}

struct Keeper {
    config: AcmeConfig,
    file: PathBuf,
    shown: Shown,
    told: Arc<Mutex<Told>>,
    kept: Kept,
    /// Whether the last attempt came as far as an order: authorities count those that fail.
    has_ordered: bool,
}

impl Keeper {
    /// Reads what an earlier run has kept, and shows it.
    fn read(&mut self) -> anyhow::Result<()> {
        let text = match std::fs::read(&self.file) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error).with_context(|| self.file.display().to_string()),
        };
        let kept: Kept = serde_json::from_slice(&text).with_context(|| self.file.display().to_string())?;
        if kept.directory != self.config.directory {
            return Ok(());
        }
        self.kept = kept;
        if self.kept.names == self.config.names {
            self.show()?;
        }
        Ok(())
    }

    /// Shows the certificate that is kept.
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

    /// When the certificate is to be replaced: at once, unless there is one for these names.
    /// Units: s since 1970.
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
                // The clock may be set meanwhile.
                sleep(Duration::from_secs(left).min(LOOK)).await;
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

    /// Orders a certificate, shows and keeps it.
    async fn obtain(&mut self) -> anyhow::Result<()> {
        self.has_ordered = false;
        let account = self.account().await?;
        let names: Vec<_> = self.config.names.iter().cloned().map(Identifier::Dns).collect();
        let mut order = match account.new_order(&NewOrder::new(&names)).await {
            Err(Error::Api(problem)) if problem.r#type.as_deref() == Some(NO_ACCOUNT) => {
                self.kept.account = None;
                bail!("the authority does not know the account any more; another will be made");
            }
            other => other?,
        };
        self.has_ordered = true;
        self.answer(&mut order).await?;
        let retries = RetryPolicy::default().timeout(PATIENCE);
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

    /// The account at the authority, made where there is none.
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

    /// Has the answers to the authority's questions shown, and tells it to look.
    async fn answer(&self, order: &mut Order) -> anyhow::Result<()> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            if authorization.status == AuthorizationStatus::Valid {
                continue;
            }
            let mut challenge = authorization
                .challenge(ChallengeType::TlsAlpn01)
                .context("the authority does not look at TCP ports (tls-alpn-01)")?;
            let name = challenge.identifier().to_string();
            let digest = challenge.key_authorization();
            let answer = answer_for(&name, digest.digest().as_ref())?;
            self.shown.answer(name, answer);
            challenge.set_ready().await?;
        }
        Ok(())
    }

    fn write(&self) -> anyhow::Result<()> {
        let text = Zeroizing::new(serde_json::to_vec_pretty(&self.kept)?);
        atomic_file::write(&self.file, &text, 0o600)
    }
}

/// The certificate that proves a name to an authority (RFC 8737 section 3).
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

/// What the authority says of the names that it has not found proven.
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
        return anyhow!("it does not say why");
    }
    anyhow!("{}", said.join("; "))
}

/// From when until when a certificate is valid. Units: s since 1970.
///
/// The TLS library says so when it is asked to check the certificate at a time out of these.
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
        _ => bail!("the certificate does not say when it ends"),
    }
}

/// In one line, and not longer than a terminal takes: an authority wrote a part of it.
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

/// In the hub's directory.
const FILE: &str = "acme.json";
/// A certificate is replaced when this part of its time is left, as authorities advise.
const RENEWED_BEFORE: u64 = 3;
/// How often the time is looked at.
const LOOK: Duration = Duration::from_secs(3600);
/// After the first trouble, doubled by each that follows: a network may come up after the hub.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// At least so long where a name was not proven: Let's Encrypt allows five of these an hour.
const PAUSE_AFTER_ORDER: Duration = Duration::from_secs(60);
/// Where a name stays unproven.
const LONGEST_PAUSE: Duration = Duration::from_secs(12 * 3600);
/// How long an authority may take to look, and to sign.
const PATIENCE: Duration = Duration::from_secs(90);
/// What an order that fails means.
const NOT_FOUND: &str = "the authority has not found this hub under its names";
/// Units: letters.
const LONGEST_TROUBLE: usize = 500;
/// RFC 8555 section 6.7.
const NO_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";
/// 31 December 9999, the latest time that a certificate can name.
const YEAR_9999: u64 = 253_402_300_799;

#[cfg(test)]
mod tests {
    use super::*;

    /// Valid from January to March 2026.
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
            shown: Shown::new(&hawser_config::identity::Identity::generate().unwrap(), None).unwrap(),
            told: Arc::default(),
            kept: Kept::default(),
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
