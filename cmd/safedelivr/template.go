package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
)

func templateCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "template",
		Short: "List, show, push, publish and preview templates",
		Long: `Work with the templates of a user: the only one, or the one that init has added, unless --user names another.
A template is a folder with the files subject.txt, body.html, body.txt and template.yaml (sender, category, defaults,
schema, allow_raw), and a folder for each language, like de, with subject.txt, body.html and body.txt.`,
	}
	var user string
	cmd.PersistentFlags().StringVar(&user, "user", "", "owner of the templates, by name")
	of := ofSender(&user)
	cmd.AddCommand(
		listOf(c, listing{
			call: call{
				op: "listTemplates", use: "list", short: "List templates by name", whose: of,
			},
			head: "NAME\tSTATE\tPUBLISHED\tNEWEST\tUPDATED",
		}, func(_ context.Context, _ *operator, i *client.TemplateInfo) []any {
			var published any = i.Published
			if i.Published == 0 {
				published = ""
			}
			return []any{i.Name, i.State, published, i.Newest, i.UpdatedAt}
		}),
		doing(c, call{op: "archiveTemplate", use: "archive NAME", whose: of, what: "template"},
			func(_ context.Context, _ *request, v *client.TemplateInfo) error {
				fmt.Fprintf(c.out, "%s is archived: batches cannot use it\n", v.Name)
				return nil
			}),
		doing(c, call{
			op: "publishTemplate", use: "publish NAME VERSION", fields: []string{"version"}, whose: of, what: "template",
			short: "Make a version the one that batches use; an older one rolls back",
		}, func(_ context.Context, _ *request, v *client.TemplateInfo) error {
			fmt.Fprintf(c.out, "%s: version %d is published\n", v.Name, v.Published)
			return nil
		}),
		showTemplate(c, of), pushTemplates(c, of), previewTemplate(c, of))
	return cmd
}

func showTemplate(c *cli, of edit) *cobra.Command {
	return doing(c, call{
		op: "getTemplate", use: "show NAME", whose: of, what: "template", flags: map[string]string{"version": ""},
		short: "Show the published or else the newest version, and the numbers of all",
		json:  jsonObject + ", with the numbers of all versions",
	}, func(ctx context.Context, r *request, v *client.Template) error {
		versions, err := first(r.TemplateVersions(ctx, r.named, client.ListOptions{}), pageRows)
		if err != nil {
			return err
		}
		if c.json {
			return json.NewEncoder(c.out).Encode(struct {
				*client.Template
				Versions []client.TemplateVersion `json:"versions"`
			}{v, versions})
		}
		if err := c.printIndented(r.raw); err != nil {
			return err
		}
		t := c.newTable("VERSION\tCREATED\tPUBLISHED")
		for _, v := range versions {
			t.row(v.Version, v.CreatedAt, v.Published)
		}
		return t.flush()
	})
}

// pushTemplates returns the command that stores each folder as a template.
func pushTemplates(c *cli, of edit) *cobra.Command {
	var publish bool
	cmd := command(c, call{
		use: "push DIR", whose: of,
		short: "Store each folder of DIR as a new version of the template of its name, unless it is the same",
	}, func(ctx context.Context, r *request) error {
		dir := os.DirFS(r.named)
		folders, err := foldersOf(dir, ".")
		if err == nil && len(folders) == 0 {
			err = errors.New("there is no folder with a template in it; see safedelivr template --help")
		}
		for _, name := range folders {
			if err == nil {
				err = pushTemplate(ctx, c, r.operator, dir, name, publish)
			}
		}
		return err
	})
	cmd.Flags().BoolVar(&publish, "publish", false, "publish the versions")
	return cmd
}

// pushTemplate stores a folder as a template.
func pushTemplate(ctx context.Context, c *cli, o *operator, dir fs.FS, name string, publish bool) error {
	src, err := readTemplate(dir, name)
	if err != nil {
		return err
	}
	in := client.NewTemplateVersion{TemplateSource: src, Publish: publish}
	v, err := o.AddTemplateVersion(ctx, name, in)
	var missing *client.Error
	if errors.As(err, &missing) && missing.Status == http.StatusNotFound {
		v, err = o.CreateTemplate(ctx, client.NewTemplate{Name: name, NewTemplateVersion: in})
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, templateError(err))
	}
	state := "a draft"
	if v.Published == v.Version {
		state = "published"
	}
	fmt.Fprintf(c.out, "%s: version %d is %s\n", v.Name, v.Version, state)
	return nil
}

// templateError lists the mistakes in a template, each by the part that it is in.
func templateError(err error) error {
	var e *client.Error
	if !errors.As(err, &e) {
		return err
	}
	text := e.Detail
	for _, f := range e.Fields {
		text += "\n  " + strings.TrimPrefix(f.Pointer, "/") + ": " + f.Detail
	}
	return exitWith(codeOfStatus(e.Status), errors.New(text))
}

// readTemplate reads the folder of a template.
func readTemplate(dir fs.FS, name string) (src client.TemplateSource, err error) {
	raw, err := readOptional(dir, path.Join(name, "template.yaml"))
	if err != nil {
		return src, err
	}
	if raw != "" {
		settings, err := yaml.Parser().Unmarshal([]byte(raw))
		if err != nil {
			return src, fmt.Errorf("%s/template.yaml: %w", name, err)
		}
		asJSON, err := json.Marshal(settings)
		if err != nil {
			return src, fmt.Errorf("%s/template.yaml: %w", name, err)
		}
		d := json.NewDecoder(bytes.NewReader(asJSON))
		d.DisallowUnknownFields()
		if err := d.Decode(&src); err != nil {
			return src, fmt.Errorf("%s/template.yaml: %w", name, err)
		}
	}
	if src.TemplateContent, err = readContent(dir, name); err != nil {
		return src, err
	}
	languages, err := foldersOf(dir, name)
	for _, language := range languages {
		if src.Languages == nil {
			src.Languages = map[string]client.TemplateContent{}
		}
		if src.Languages[language], err = readContent(dir, path.Join(name, language)); err != nil {
			break
		}
	}
	return src, err
}

// foldersOf returns the names of the folders in a folder that are not hidden.
func foldersOf(dir fs.FS, name string) (out []string, err error) {
	entries, err := fs.ReadDir(dir, name)
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			out = append(out, e.Name())
		}
	}
	return out, err
}

func readContent(dir fs.FS, folder string) (c client.TemplateContent, err error) {
	for file, to := range map[string]*string{"subject.txt": &c.Subject, "body.html": &c.HTML, "body.txt": &c.Text} {
		if *to, err = readOptional(dir, path.Join(folder, file)); err != nil {
			return c, err
		}
	}
	c.Subject = strings.TrimSpace(c.Subject)
	return c, nil
}

// readOptional reads a file; one that does not exist is empty.
func readOptional(dir fs.FS, name string) (string, error) {
	raw, err := fs.ReadFile(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(raw), err
}

func previewTemplate(c *cli, of edit) *cobra.Command {
	var to client.Recipient
	var vars string
	cmd := command(c, call{
		op: "preview", use: "preview NAME", fields: []string{"template"}, only: []string{"language"}, whose: of,
		short: "Show a template as a recipient gets it, with warnings; NAME@VERSION names a version",
		usage: map[string]string{"language": "language, like de-AT"}, json: jsonObject,
	}, func(ctx context.Context, r *request) error {
		if err := json.Unmarshal([]byte(vars), &to.Vars); err != nil {
			return fmt.Errorf("--vars is not a JSON object: %w", err)
		}
		r.body["to"] = &to
		var p client.Preview
		if err := r.send(ctx, &p); err != nil {
			return templateError(err)
		}
		if c.json {
			return c.printRaw(r.raw)
		}
		for _, h := range p.Headers {
			fmt.Fprintf(c.out, "%s: %s\n", h.Name, h.Value)
		}
		for _, body := range []string{p.Text, p.HTML} {
			if body != "" {
				fmt.Fprintf(c.out, "\n%s\n", body)
			}
		}
		for _, w := range p.Warnings {
			fmt.Fprintf(c.err, "warning: %s: %s\n", w.Code, w.Detail)
		}
		return nil
	})
	f := cmd.Flags()
	f.StringVar(&to.Email, "to", "ann@example.com", "address of the recipient")
	f.StringVar(&to.Name, "name", "Ann", "name of the recipient")
	f.StringVar(&vars, "vars", "{}", "variables of the recipient, as a JSON object")
	return cmd
}
