//! AWS's shared files of profiles.
//!
//! In: their texts. Out: the settings of a profile by name. Pure.
//!
//! Specification: AWS SDKs and Tools Reference Guide, "Shared config and credentials files".

use std::collections::BTreeMap;

/// The settings of each profile.
#[derive(Default)]
pub(super) struct Profiles(BTreeMap<String, BTreeMap<String, String>>);

impl Profiles {
    /// Of the file `config`, whose sections are `[profile NAME]`, and of the file `credentials`, whose sections are `[NAME]`, and which
    /// counts more.
    pub(super) fn of(config: &str, credentials: &str) -> Self {
        let mut profiles = Self::default();
        profiles.add(config, true);
        profiles.add(credentials, false);
        profiles
    }

    /// A profile's settings; `None`: there is no such profile.
    pub(super) fn named(&self, name: &str) -> Option<&BTreeMap<String, String>> {
        self.0.get(name)
    }

    fn add(&mut self, text: &str, is_config: bool) {
        let mut profile: Option<String> = None;
        for line in text.lines() {
            // A nested setting, or a comment.
            if line.starts_with([' ', '\t', '#', ';']) {
                continue;
            }
            if let Some((section, _)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                profile = profile_of(section.trim(), is_config).map(unquoted);
                if let Some(name) = &profile {
                    self.0.entry(name.clone()).or_default();
                }
            } else if let (Some(name), Some((key, value))) = (&profile, line.split_once('=')) {
                let value = value.split(" #").next().unwrap_or_default().trim().to_owned();
                self.0.entry(name.clone()).or_default().insert(key.trim().to_ascii_lowercase(), value);
            }
        }
    }
}

/// The profile whose settings follow; `None`: it is a section of another kind.
fn profile_of(section: &str, is_config: bool) -> Option<&str> {
    match section.split_once(char::is_whitespace) {
        Some(("profile", name)) if is_config => Some(name.trim()),
        _ if !is_config || section == "default" => Some(section),
        Some(_) | None => None,
    }
}

fn unquoted(name: &str) -> String {
    name.trim_matches(['"', '\'']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_of_both_files_are_one_and_credentials_count_more() {
        let config = "# a comment\n[default]\nregion = eu-west-1\n[profile \"orders\"]\nRegion=eu-central-1 # near\n\
                      s3 =\n  max = 5\naws_access_key_id = of-config\n[sso-session x]\nregion = nowhere\n[services y]\n";
        let credentials =
            "[orders]\naws_access_key_id = AKID\naws_secret_access_key = a=b/c+d\n; another\n[profile z]\nx = y\n";
        let profiles = Profiles::of(config, credentials);
        let of = |name: &str, key: &str| profiles.named(name)?.get(key).cloned();
        assert_eq!(of("default", "region").as_deref(), Some("eu-west-1"));
        assert_eq!(of("orders", "region").as_deref(), Some("eu-central-1"));
        assert_eq!(of("orders", "aws_access_key_id").as_deref(), Some("AKID"));
        assert_eq!(of("orders", "aws_secret_access_key").as_deref(), Some("a=b/c+d"));
        assert!(profiles.named("x").is_none() && profiles.named("y").is_none());
    }
}
