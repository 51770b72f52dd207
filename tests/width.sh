#!/bin/bash
# width.sh: comments of Rust have at most 110 columns, as the code has (rustfmt.toml), and lines of pages at most 120. Tables,
# drawings, code blocks, addresses and what is generated may be wider. A row of a table is one line: wrapped, it is no row.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck disable=SC2016 # These are the variables of perl.
found=$(find . \( -name target -o -name gen -o -name .git -o -path ./docs/reference \) -prune -o \
  \( -name '*.rs' -o -name '*.md' \) -print | LC_ALL=C sort | xargs perl -CSD -ne '
    ($file, $line, $code) = ($ARGV, 0, 0) if $ARGV ne ($file // "");
    $line++;
    chomp;
    my ($text, $most) = ($_, 120);
    if ($file =~ /\.rs$/) {
      $most = 110;
      $text =~ s{^\s*//[/!]?\s?}{} or next;
    }
    if ($text =~ /^\s*```/) { $code = !$code; next }
    next if $code;
    print "$file:$line: a row of a table is wrapped\n" if $most == 120 && $text =~ m{^\s*\|} && $text !~ m{\|\s*$};
    next if length() <= $most || $text =~ m{^\s*\||https?://|[\x{2500}-\x{257f}]};
    print "$file:$line: ", length(), " columns, at most $most\n";
  ')
[[ -z $found ]] || { printf '%s\n' "$found" >&2; exit 1; }
