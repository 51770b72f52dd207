// Command plugin-keys prints the JSON keys that each reference plugin reads, as its Go source has them.
//
//	go run main.go PLUGINS CNI
//
// takes the directories of the modules github.com/containernetworking/plugins and …/cni. A key leads to the keys of the
// object, or of the list's objects, that it holds.
package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"os"
	"path/filepath"
	"reflect"
	"strings"
)

// What a plugin decodes its standard input into, where it is not called NetConf.
var roots = map[string]string{
	"bandwidth":  "PluginConf",
	"firewall":   "FirewallNetConf",
	"host-local": "Net",
	"portmap":    "PortMapConf",
	"sbr":        "PluginConf",
	"static":     "Net",
	"tuning":     "TuningConf",
	"vrf":        "VRFNetConf",
}

// Where those types are, if not in the plugin's own directory.
var packages = map[string]string{"host-local": "backend/allocator"}

type keys map[string]keys

// Types by name; those of package types with that in front.
type scope map[string]ast.Expr

func (s scope) read(dir, prefix string) {
	notTest := func(info os.FileInfo) bool { return !strings.HasSuffix(info.Name(), "_test.go") }
	parsed, err := parser.ParseDir(token.NewFileSet(), dir, notTest, 0)
	if err != nil {
		log.Fatal(err)
	}
	for _, pkg := range parsed {
		ast.Inspect(pkg, func(node ast.Node) bool {
			if spec, ok := node.(*ast.TypeSpec); ok {
				s[prefix+spec.Name.Name] = spec.Type
			}
			return true
		})
	}
}

// collect adds the keys that JSON for this type can have.
func (s scope) collect(expr ast.Expr, prefix string, into keys) {
	switch t := expr.(type) {
	case *ast.StarExpr:
		s.collect(t.X, prefix, into)
	case *ast.ArrayType:
		s.collect(t.Elt, prefix, into)
	case *ast.SelectorExpr:
		if pkg, ok := t.X.(*ast.Ident); ok && pkg.Name == "types" {
			s.named("types."+t.Sel.Name, "types.", into)
		}
	case *ast.Ident:
		s.named(prefix+t.Name, prefix, into)
	case *ast.StructType:
		for _, field := range t.Fields.List {
			if len(field.Names) == 0 {
				s.collect(field.Type, prefix, into)
				continue
			}
			if field.Tag == nil {
				continue
			}
			tag := reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("json")
			name, _, _ := strings.Cut(tag, ",")
			if name == "" || name == "-" {
				continue
			}
			below := keys{}
			s.collect(field.Type, prefix, below)
			into[name] = below
		}
	}
}

func (s scope) named(name, prefix string, into keys) {
	// It decodes itself, by way of this one.
	if name == "types.Route" {
		name = "types.route"
	}
	if found, ok := s[name]; ok {
		s.collect(found, prefix, into)
	}
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: plugin-keys PLUGINS CNI")
	}
	all := keys{}
	for _, kind := range []string{"main", "ipam", "meta"} {
		dirs, err := filepath.Glob(filepath.Join(os.Args[1], "plugins", kind, "*"))
		if err != nil {
			log.Fatal(err)
		}
		for _, dir := range dirs {
			plugin := filepath.Base(dir)
			if info, err := os.Stat(dir); err != nil || !info.IsDir() || plugin == "windows" {
				continue
			}
			known := scope{}
			known.read(filepath.Join(os.Args[2], "pkg", "types"), "types.")
			known.read(filepath.Join(dir, packages[plugin]), "")
			root := "NetConf"
			if name, ok := roots[plugin]; ok {
				root = name
			}
			if _, ok := known[root]; !ok {
				if roots[plugin] != "" {
					log.Fatalf("%s has no type %s", plugin, root)
				}
				root = "types.NetConf"
			}
			prefix := ""
			if strings.HasPrefix(root, "types.") {
				prefix = "types."
			}
			all[plugin] = keys{}
			known.named(root, prefix, all[plugin])
		}
	}
	out, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(out))
}
