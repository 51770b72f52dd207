//! The site: pages of HTML that mdBook makes of the documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{CONTENTS, normal, pages, prose, root, targets};

/// A built site.
struct Site {
    folder: tempfile::TempDir,
    /// The text of each page, by its path in the folder.
    pages: BTreeMap<PathBuf, String>,
}

impl Site {
    /// `None` where `test` cannot have one, and says so.
    fn build(test: &str) -> Option<Self> {
        let Some(mdbook) = std::env::var_os("NETCLAIM_MDBOOK") else {
            // At the start of a line, which the test runner has not always ended.
            let skipped = format!(
                "\nSKIPPED: site::{test}: its program takes minutes to build: make test-integrations\n"
            );
            std::io::stderr().write_all(skipped.as_bytes()).unwrap();
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("site");
        let built = Command::new(root().join("docs/site/build.sh")).arg(mdbook).arg(&out).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let (mut pages, mut folders) = (BTreeMap::new(), vec![out.clone()]);
        while let Some(next) = folders.pop() {
            for entry in fs::read_dir(next).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "html") {
                    let text = fs::read_to_string(&path).unwrap();
                    pages.insert(path.strip_prefix(&out).unwrap().to_owned(), text);
                }
            }
        }
        // All pages at once, with links of its own kind; and a page that is shown at any place.
        for made in ["print.html", "404.html"] {
            pages.remove(Path::new(made));
        }
        Some(Self { folder, pages })
    }

    fn file(&self, path: &Path) -> PathBuf {
        self.folder.path().join("site").join(path)
    }

    /// Why a link leads nowhere. A link to another host leads somewhere.
    fn broken(&self, page: &Path, link: &str) -> Option<String> {
        let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
        let is_broken = if let Some(path) = path.strip_prefix("file://") {
            !Path::new(path).exists()
        } else if ["https:", "http:", "mailto:"].iter().any(|other| path.starts_with(other)) {
            false
        } else {
            let to = match path {
                "" => page.to_owned(),
                path => normal(&page.parent().unwrap().join(path)),
            };
            match anchor.filter(|anchor| !anchor.is_empty()) {
                Some(anchor) => !self.pages.get(&to).is_some_and(|text| anchors(text).contains(anchor)),
                None => !self.file(&to).exists(),
            }
        };
        is_broken.then(|| format!("{}: {link}", page.display()))
    }
}

/// The values of an attribute in a page of HTML.
fn values<'a>(page: &'a str, attribute: &str) -> impl Iterator<Item = &'a str> {
    let begin = format!(" {attribute}=\"");
    let after = page.match_indices(&begin).map(|(at, begin)| at + begin.len()).collect::<Vec<_>>();
    after.into_iter().filter_map(|at| page.get(at..)?.split('"').next())
}

fn anchors(page: &str) -> BTreeSet<&str> {
    values(page, "id").collect()
}

/// The links and images of a page's text, without those of the frame that all pages have.
fn links(page: &str) -> Vec<&str> {
    let text = page.split("<main>").nth(1).and_then(|rest| rest.split("</main>").next()).unwrap_or_default();
    values(text, "href").chain(values(text, "src")).collect()
}

/// The page of HTML that a page becomes.
fn html(page: &Path) -> PathBuf {
    let page = page.strip_prefix("docs").unwrap();
    if page.ends_with("README.md") { page.with_file_name("index.html") } else { page.with_extension("html") }
}

#[test]
#[ignore = "needs NETCLAIM_MDBOOK, the program mdBook"]
fn every_page_is_on_the_site_and_its_links_lead_somewhere() {
    let Some(site) = Site::build("every_page_is_on_the_site_and_its_links_lead_somewhere") else { return };
    for (page, text) in pages() {
        if !page.starts_with("docs") || page == Path::new(CONTENTS) {
            continue;
        }
        let made = site.pages.get(&html(&page)).unwrap_or_else(|| panic!("{} is missing", page.display()));
        let written = prose(&text).flat_map(targets).filter(|target| !target.starts_with('#')).count();
        let shown = links(made).into_iter().filter(|link| !link.starts_with('#')).count();
        assert!(shown >= written, "{}: {shown} of {written} links", page.display());
    }
    let found: Vec<(&Path, &str)> = site
        .pages
        .iter()
        .flat_map(|(page, text)| links(text).into_iter().map(move |link| (page.as_path(), link)))
        .collect();
    assert!(found.len() > 500, "only {} links were found", found.len());
    let broken: Vec<_> = found.iter().filter_map(|(page, link)| site.broken(page, link)).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
#[ignore = "needs NETCLAIM_MDBOOK, the program mdBook"]
fn the_runbook_of_each_alert_is_on_the_site() {
    let Some(site) = Site::build("the_runbook_of_each_alert_is_on_the_site") else { return };
    let alerts = fs::read_to_string(root().join("deploy/monitoring/alerts.yaml")).unwrap();
    let urls = alerts.lines().filter_map(|line| line.trim().strip_prefix("runbook_url: "));
    let urls: Vec<&str> = urls.collect();
    assert!(urls.len() > 10, "{urls:?}");
    for url in urls {
        let page = url.split_once("/docs/").map(|(_, page)| page.replace(".md#", ".html#"));
        let page = page.unwrap_or_else(|| panic!("{url} is no page"));
        assert_eq!(site.broken(Path::new("index.html"), &page), None);
    }
}
