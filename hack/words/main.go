// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command words fails if the product's comments, texts or identifiers use a word that docs/glossary.md prints in bold
// in its table of words that we do not write. The table after it lists what is excepted.
package main

import (
	"bytes"
	"context"
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"unicode"
)

const glossary = "docs/glossary.md"

func main() {
	found, err := check()
	if err != nil {
		fmt.Fprintln(os.Stderr, "words:", err)
		os.Exit(2)
	}
	for _, finding := range found {
		fmt.Println(finding)
	}
	if len(found) > 0 {
		os.Exit(1)
	}
}

// check returns what is found in the files that git knows.
func check() ([]string, error) {
	page, err := os.ReadFile(glossary)
	if err != nil {
		return nil, err
	}
	r, err := parseRules(string(page))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", glossary, err)
	}
	git := exec.CommandContext(context.Background(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard",
		"cmd", "internal")
	list, err := git.Output()
	if err != nil {
		return nil, fmt.Errorf("list the files: %w", err)
	}
	var found []string
	for file := range strings.SplitSeq(string(list), "\x00") {
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if os.IsNotExist(err) { // It was deleted, and git still has it.
			continue
		}
		if err != nil {
			return nil, err
		}
		found = append(found, r.find(file, source)...)
	}
	return found, nil
}

// rules are the terms that are refused, and the lines that are excepted.
type rules struct {
	terms      []term
	exceptions []*regexp.Regexp
}

// term is one or more words that are refused, and what is written instead.
type term struct {
	words   []string
	instead string
}

var (
	row  = regexp.MustCompile(`^\| (.*) \| (.*) \|$`)
	bold = regexp.MustCompile(`\*\*([a-z ]+)\*\*`)
	code = regexp.MustCompile("^`(.+)`$")
)

// parseRules reads the rules from the text of the glossary.
func parseRules(page string) (rules, error) {
	var r rules
	_, section, _ := strings.Cut(page, "\n## We do not write")
	for line := range strings.Lines(section) {
		cells := row.FindStringSubmatch(strings.TrimSpace(line))
		if cells == nil {
			continue
		}
		for _, match := range bold.FindAllStringSubmatch(cells[1], -1) {
			r.terms = append(r.terms, term{strings.Fields(match[1]), cells[2]})
		}
		if match := code.FindStringSubmatch(cells[1]); match != nil {
			exception, err := regexp.Compile(strings.ReplaceAll(match[1], `\|`, "|"))
			if err != nil {
				return rules{}, err
			}
			r.exceptions = append(r.exceptions, exception)
		}
	}
	if len(r.terms) == 0 || len(r.exceptions) == 0 {
		return rules{}, fmt.Errorf("it has %d words in bold, and %d exceptions", len(r.terms), len(r.exceptions))
	}
	return r, nil
}

// isForm reports whether a word is a regular form of another one.
func isForm(word, of string) bool {
	ending, ok := strings.CutPrefix(word, strings.TrimSuffix(of, "e"))
	if !ok {
		return false
	}
	if strings.HasSuffix(of, "e") {
		return ending == "e" || ending == "es" || ending == "ed" || ending == "ing"
	}
	return ending == "" || ending == "s" || ending == "es" || ending == "ed" || ending == "ing"
}

// word is a word of a file, in lower case, and its line.
type word struct {
	text string
	line int
}

// find returns the refused terms in a file.
func (r rules) find(name string, source []byte) []string {
	files := token.NewFileSet()
	file := files.AddFile(name, -1, len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, scanner.ScanComments)
	lines := bytes.Split(source, []byte("\n"))
	var found []string
	var comment []word // the words of comments that follow each other
	flush := func() {
		found = append(found, r.match(name, lines, comment)...)
		comment = nil
	}
	for {
		position, kind, text := s.Scan()
		switch line := file.Line(position); kind {
		case token.EOF:
			flush()
			return found
		case token.COMMENT:
			comment = append(comment, wordsOf(text, line)...)
		case token.IDENT:
			flush()
			found = append(found, r.match(name, lines, partsOf(text, line))...)
		case token.STRING:
			flush()
			found = append(found, r.match(name, lines, wordsOf(text, line))...)
		default:
			flush()
		}
	}
}

// match returns the refused terms among consecutive words.
func (r rules) match(name string, lines [][]byte, words []word) []string {
	var found []string
	for i, first := range words {
		for _, t := range r.terms {
			if t.isAt(words[i:]) && !r.isExcepted(lines[first.line-1]) {
				found = append(found, fmt.Sprintf("%s:%d: %q: write %s", name, first.line, strings.Join(t.words, " "),
					t.instead))
			}
		}
	}
	return found
}

// isAt reports whether words begin with the term.
func (t term) isAt(words []word) bool {
	if len(words) < len(t.words) || !isForm(words[0].text, t.words[0]) {
		return false
	}
	for i, next := range t.words[1:] {
		if words[i+1].text != next {
			return false
		}
	}
	return true
}

func (r rules) isExcepted(line []byte) bool {
	for _, exception := range r.exceptions {
		if exception.Match(line) {
			return true
		}
	}
	return false
}

// wordsOf returns the words of a comment or a string literal that begins in a line.
func wordsOf(text string, line int) []word {
	var words []word
	for part := range strings.SplitSeq(text, "\n") {
		for _, w := range strings.FieldsFunc(part, func(c rune) bool { return !unicode.IsLetter(c) && c != '\'' }) {
			words = append(words, word{strings.ToLower(w), line})
		}
		line++
	}
	return words
}

// partsOf returns the words of an identifier, whose first letters are upper case.
func partsOf(name string, line int) []word {
	var words []word
	start := 0
	letters := []rune(name)
	for i := 1; i <= len(letters); i++ {
		if i < len(letters) && (!unicode.IsUpper(letters[i]) || unicode.IsUpper(letters[i-1])) && letters[i] != '_' {
			continue
		}
		words = append(words, word{strings.ToLower(strings.Trim(string(letters[start:i]), "_")), line})
		start = i
	}
	return words
}
