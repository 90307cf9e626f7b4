//! `TextSigner`: bytes as a text that only instances with the same secret can write. Others can decode it, so it contains no secret.
//!
//! The text is the payload in base64 for URLs, a dot, and its HMAC-SHA256 in the same base64.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::SystemRandom;

/// Signs and verifies texts.
#[derive(Debug)]
pub(super) struct TextSigner(hmac::Key);

impl TextSigner {
    /// Signs with `key`. Without one, a random key serves a store that is not shared; on a shared store there is no signer, since
    /// instances could not verify the texts of each other.
    pub(super) fn new(key: Option<hmac::Key>, is_shared: bool) -> Option<Self> {
        let random = || hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok();
        key.or_else(|| if is_shared { None } else { random() }).map(Self)
    }

    /// The text of a payload.
    pub(super) fn sign(&self, payload: &[u8]) -> String {
        let signature = hmac::sign(&self.0, payload);
        format!("{}.{}", URL_SAFE_NO_PAD.encode(payload), URL_SAFE_NO_PAD.encode(signature))
    }

    /// The payload of a text, if its signature is right. Compares in constant time.
    pub(super) fn verify(&self, text: &str) -> Option<Vec<u8>> {
        let (payload, signature) = text.split_once('.')?;
        let (payload, signature) = (URL_SAFE_NO_PAD.decode(payload).ok()?, URL_SAFE_NO_PAD.decode(signature).ok()?);
        hmac::verify(&self.0, &payload, &signature).ok()?;
        Some(payload)
    }

    /// The first byte of the payload, whoever wrote it.
    pub(super) fn unverified_start(text: &str) -> Option<u8> {
        let (payload, _) = text.split_once('.')?;
        URL_SAFE_NO_PAD.decode(payload.get(..4)?).ok()?.first().copied()
    }
}
