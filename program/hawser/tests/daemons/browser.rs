//! Headless Chromium.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use hawser_testing::Daemon;
use serde_json::{Value, json};

/// Browser, controlled by its DevTools protocol: JSON texts that end with a zero byte, in both
/// directions.
pub(crate) struct Browser {
    _process: Daemon,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    last: u64,
    page: Value,
    /// Errors of the page's scripts and of the browser.
    pub(crate) complaints: Vec<String>,
}

impl Browser {
    /// Opens the page; `command` runs a shell in the namespace that reaches it.
    pub(crate) fn open(mut command: Command, profile: &tempfile::TempDir, address: &str) -> Self {
        command.args([
            "-c",
            "exec chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --remote-debugging-pipe \
             --user-data-dir=\"$0\" 3<&0 4>&1 </dev/null >/dev/null 2>&1",
        ]);
        command
            .arg(profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = Daemon(command.spawn().unwrap());
        let mut browser = Self {
            commands: process.0.stdin.take().unwrap(),
            answers: BufReader::new(process.0.stdout.take().unwrap()),
            _process: process,
            last: 0,
            page: Value::Null,
            complaints: Vec::new(),
        };
        let target = browser.tell("Target.createTarget", &json!({ "url": address }));
        let wanted = json!({ "targetId": target["targetId"], "flatten": true });
        browser.page = browser.tell("Target.attachToTarget", &wanted)["sessionId"].clone();
        browser.tell("Runtime.enable", &json!({}));
        browser.tell("Log.enable", &json!({}));
        browser
    }

    pub(crate) fn tell(&mut self, method: &str, parameters: &Value) -> Value {
        self.last += 1;
        let mut command = json!({ "id": self.last, "method": method, "params": parameters });
        if self.page.is_string() {
            command["sessionId"] = self.page.clone();
        }
        write!(self.commands, "{command}\0").unwrap();
        loop {
            let mut said = Vec::new();
            self.answers.read_until(0, &mut said).unwrap();
            let said: Value = serde_json::from_slice(said.strip_suffix(b"\0").unwrap()).unwrap();
            let is_error = said["params"]["entry"]["level"] == "error" || said["params"]["type"] == "error";
            if said["method"] == "Runtime.exceptionThrown" || is_error {
                self.complaints.push(said.to_string());
            }
            if said["id"] == self.last {
                assert!(said["error"].is_null(), "{method}: {said}");
                return said["result"].clone();
            }
        }
    }

    /// Returns the value of an expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let wanted = json!({ "expression": expression, "returnByValue": true });
        self.tell("Runtime.evaluate", &wanted)["result"]["value"].clone()
    }

    pub(crate) fn wait(&mut self, expression: &str) {
        let deadline = Instant::now() + hawser_testing::GIVE_UP;
        while self.value(expression) != true {
            let page = self.value("document.body.innerText");
            assert!(Instant::now() < deadline, "never: {expression}; {page}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn press_enter(&mut self) {
        let key = |kind| json!({ "type": kind, "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r" });
        self.tell("Input.dispatchKeyEvent", &key("keyDown"));
        self.tell("Input.dispatchKeyEvent", &key("keyUp"));
    }

    /// Opens a dialog by keyboard, fills it in, and leaves it by keyboard.
    pub(crate) fn fill_in(&mut self, button: &str, fields: &[(&str, &str)]) {
        let find = format!("document.querySelector('button[aria-label=\"{button}\"]')");
        self.wait(&format!("{find} !== null"));
        // The page recreates its buttons every second.
        self.value(&format!("{find}.focus()"));
        self.press_enter();
        self.wait("document.querySelector('dialog[open]') !== null");
        self.wait("document.activeElement.closest('dialog') !== null");
        for (field, value) in fields {
            self.value(&format!("document.getElementById('{field}').value = '{value}'"));
        }
        self.value("document.querySelector('dialog[open] button[value=set]').focus()");
        self.press_enter();
        self.wait("document.querySelector('dialog[open]') === null");
        self.wait(&format!("document.activeElement === {find}"));
    }
}
