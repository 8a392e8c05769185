//! A hub's certificate by ACME from Pebble, a certificate authority for tests.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::world::{Daemon, Files, World, active, good};

const NAME: &str = "hub.hawser.test";

/// Authority in the hub's namespace whose certificates have this validity.
struct Authority<'a> {
    world: &'a World,
    valid_s: u32,
}

impl Authority<'_> {
    fn file(&self, name: &str) -> PathBuf {
        self.world.place("authority").join(name)
    }

    /// Writes the authority's own certificate and its settings.
    fn prepare(&self) {
        std::fs::create_dir_all(self.world.place("authority")).unwrap();
        let mut openssl = Command::new("openssl");
        openssl.args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
        ]);
        openssl.args(["-nodes", "-days", "2", "-subj", "/CN=authority"]);
        openssl.args(["-addext", "subjectAltName=IP:127.0.0.1"]);
        openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
        openssl.arg("-keyout").arg(self.file("key.pem"));
        openssl.arg("-out").arg(self.file("cert.pem"));
        good(openssl);
        let settings = serde_json::json!({ "pebble": {
            "listenAddress": "127.0.0.1:14000",
            "managementListenAddress": "127.0.0.1:15000",
            "certificate": self.file("cert.pem"),
            "privateKey": self.file("key.pem"),
            "httpPort": 80,
            "tlsPort": 443,
            "ocspResponderURL": "",
            "externalAccountBindingRequired": false,
            "certificateValidityPeriod": self.valid_s,
        }});
        std::fs::write(self.file("pebble.json"), settings.to_string()).unwrap();
    }

    fn start(&self) -> Daemon {
        let log = std::fs::File::create(self.file("log")).unwrap();
        let mut pebble = self.world.inside("h", "pebble");
        pebble.arg("-config").arg(self.file("pebble.json"));
        pebble
            .envs([("PEBBLE_VA_NOSLEEP", "1"), ("PEBBLE_WFE_NONCEREJECT", "0")])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        Daemon(pebble.spawn().unwrap())
    }

    fn configure(&self, tls: &str) {
        let file = self.world.place("h").join("hub.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let ca = self.file("cert.pem");
        let acme = format!(
            "\n[tls]\n{tls}[tls.acme]\nnames = [\"{NAME}\"]\ncontact = \"admin@hawser.test\"\n\
             directory = \"https://127.0.0.1:14000/dir\"\nca = \"{}\"\n",
            ca.display()
        );
        std::fs::write(&file, text + &acme).unwrap();
    }
}

fn until(world: &World) -> Option<u64> {
    world.status("h")["tls"]["acme"]["until_s"].as_u64()
}

#[test]
fn a_hub_gets_a_certificate_shows_it_keeps_it_and_renews_it() {
    let Some(world) = World::new("a1") else { return };
    let authority = Authority {
        world: &world,
        valid_s: 12,
    };
    authority.prepare();
    world.init();
    authority.configure("");
    let _names = Files::new(&world, "h", "hosts", &format!("198.51.100.1 {NAME}\n"));
    let pebble = authority.start();
    let hub = world.start("h", &["hub", "run"]);
    world.wait("certified", |world| until(world).is_some());
    let first = until(&world).unwrap();
    let kept = world.place("h").join("acme.json");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&kept).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "a key is in it");

    // Clients accept a certificate of any authority.
    let mut nft = world.inside("h", "nft");
    nft.arg(
        "add table inet shut; add chain inet shut in { type filter hook prerouting priority -300; }; \
         add rule inet shut in iifname lte meta l4proto udp drop",
    );
    good(nft);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("over TLS on one", |world| {
        active(world).contains(&"lte/tls".to_owned())
    });
    let networks = world.status("c")["networks"].clone();
    let lte = networks
        .as_array()
        .unwrap()
        .iter()
        .find(|network| network["name"] == "lte")
        .unwrap();
    assert_eq!(
        lte["tls"]["hub_key"], false,
        "the authority's certificate is shown"
    );

    world.wait("renewed", |world| until(world) > Some(first));
    let said = String::from_utf8(good(world.hawser("h", &["status"])).stdout).unwrap();
    assert!(said.contains("certificate of hub.hawser.test until "), "{said}");

    // The next run uses the certificate of this one and does not contact the authority.
    let second = until(&world);
    drop((hub, pebble));
    let _hub = world.start("h", &["hub", "run"]);
    world.wait("up again", |world| !world.status("h")["tls"]["acme"].is_null());
    assert!(until(&world) >= second);
    let log = std::fs::read_to_string(world.place("h").with_extension("log")).unwrap();
    let secret = std::fs::read_to_string(&kept).unwrap();
    let secret: serde_json::Value = serde_json::from_str(&secret).unwrap();
    let line = secret["key"].as_str().unwrap().lines().nth(1).unwrap();
    assert!(!log.contains(line), "a secret in {log}");
}

#[test]
fn a_name_that_leads_elsewhere_is_said_and_the_hub_works() {
    let Some(world) = World::new("a2") else { return };
    let authority = Authority {
        world: &world,
        valid_s: 3600,
    };
    authority.prepare();
    world.init();
    authority.configure("listen = \"198.51.100.1:443\"\n");
    // No program listens at this address.
    let _names = Files::new(&world, "h", "hosts", &format!("127.0.0.99 {NAME}\n"));
    let _pebble = authority.start();
    let _hub = world.start("h", &["hub", "run"]);
    world.wait("said", |world| {
        let trouble = world.status("h")["tls"]["acme"]["trouble"].clone();
        let trouble = trouble.as_str().unwrap_or_default();
        trouble.contains("the authority cannot reach this hub by its names: ")
    });
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("on both networks", |world| active(world) == ["fiber", "lte"]);
}
