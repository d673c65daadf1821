//! The two calls that give librdkafka a token or a password while a client lives.
//!
//! In: a client, and a token or a password. Out: nothing, or librdkafka's error. This file keeps nothing.
//! Specification: librdkafka's `rdkafka.h`, `rd_kafka_oauthbearer_set_token`, `rd_kafka_sasl_set_credentials`: both are thread-safe.

use super::token::Token;
use rdkafka::ClientContext;
use rdkafka::bindings;
use rdkafka::client::Client;
use secrecy::{ExposeSecret as _, SecretString};
use std::ffi::{CStr, CString, c_char};

/// A C string. A text with a zero byte ends there.
fn c_text(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

/// Gives the client a token, for its next connections and for those that have to authenticate again.
#[allow(unsafe_code, reason = "rdkafka hands over no extensions, and only where it asks for a token itself")]
pub(super) fn set_token<C: ClientContext>(client: &Client<C>, token: &Token) -> Result<(), String> {
    let (value, principal) = (c_text(token.value.expose_secret()), c_text(&token.principal));
    let extensions: Vec<CString> = token.extensions.iter().flat_map(|(k, v)| [c_text(k), c_text(v)]).collect();
    let mut pointers: Vec<*const c_char> = extensions.iter().map(|text| text.as_ptr()).collect();
    let mut room: [c_char; 512] = [0; 512];
    // SAFETY: the client outlives the call; every text is ended by a zero byte and outlives it, too; librdkafka copies them, and writes
    // at most as many bytes as it is told there are, with a zero byte at their end.
    let (code, text) = unsafe {
        let code = bindings::rd_kafka_oauthbearer_set_token(
            client.native_ptr(),
            value.as_ptr(),
            token.expires_at_millis(),
            principal.as_ptr(),
            pointers.as_mut_ptr(),
            pointers.len(),
            room.as_mut_ptr(),
            room.len(),
        );
        (code, CStr::from_ptr(room.as_ptr()).to_string_lossy().into_owned())
    };
    if code == bindings::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR { Ok(()) } else { Err(text) }
}

/// Gives the client another password, for its next connections.
#[allow(unsafe_code, reason = "rdkafka wraps no way to change a client's password")]
pub(super) fn set_password<C: ClientContext>(
    client: &Client<C>,
    user: &str,
    password: &SecretString,
) -> Result<(), String> {
    let (user, password) = (c_text(user), c_text(password.expose_secret()));
    // SAFETY: client and texts outlive the call, which copies them; an error is ours, read before it is given back, once.
    unsafe {
        let error = bindings::rd_kafka_sasl_set_credentials(client.native_ptr(), user.as_ptr(), password.as_ptr());
        if error.is_null() {
            return Ok(());
        }
        let text = CStr::from_ptr(bindings::rd_kafka_error_string(error)).to_string_lossy().into_owned();
        bindings::rd_kafka_error_destroy(error);
        Err(text)
    }
}
