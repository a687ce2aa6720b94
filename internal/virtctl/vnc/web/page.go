// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package web

import (
	"html/template"
	"net/http"
)

// page serves the page with the guest's name.
func (s *Server) page(w http.ResponseWriter, _ *http.Request) {
	page, err := template.ParseFS(s.Assets, "page/index.html")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = page.Execute(w, struct{ Title string }{s.Title})
}
